"""VaGraM: the loss and its gradient weights by hand, and two learners that share a learned world."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import harness
import pytest
import torch
from torch import nn
from vagram import Branched, Dyna, Prediction, Real, ValueGradient, Vaml, World, WorldModel

from shuhari import testing
from shuhari.batch import Batch
from shuhari.buffers.replay import Replay
from shuhari.curricula.sequential import Sequential
from shuhari.events import Collected, Event
from shuhari.learners.gradient import GradientLearner
from shuhari.learners.parts import Term
from shuhari.models.critics import ContinuousQ, ScalarModel
from shuhari.models.follow import Ema
from shuhari.models.gaussian import SquashedPolicy
from shuhari.objectives.reparam import Reparam
from shuhari.objectives.td import SoftTD
from shuhari.objectives.temperature import Temperature
from shuhari.ports import Curriculum, Environment, Environments, Model, Objective, Transform
from shuhari.rollouts.episode import Episode
from shuhari.tasks.gym import Gym
from shuhari.testing import Role, check_resumed

model: Model = WorldModel()
environment: Environment = World()
transform: Transform = ValueGradient()
source: Transform = Real()
objective: Objective = Vaml()
environments: Environments = Dyna()
curriculum: Curriculum = Branched(Sequential())


def loss(error: tuple[float, ...], g: tuple[float, ...] | None, scale: float = 1.0) -> float:
    """The loss of a transition that is predicted wrong by `error`, and its reward by 0.5."""
    s2 = torch.tensor([[1.0, 2.0]])
    whole = {
        "mask": torch.tensor([[True], [False]]), "logp": torch.zeros(2, 1), "child": torch.tensor([1, -1]),
        "context": torch.cat([torch.zeros(1, 2), s2]), "action": torch.zeros(2, 1), "reward": torch.zeros(2, 1),
    }  # fmt: skip
    batch = Batch(whole).take(torch.tensor([0]))
    if g is not None:
        batch = batch.put({"value_gradient": scale * torch.tensor([[g]])})
    world: Any = lambda b: Prediction((s2 + torch.tensor([error]))[:, None], torch.full((1, 1), 0.5))  # noqa: E731
    value, _ = Vaml()(batch, testing.context(models={"world": world}))
    return float(value[0]) - 0.25


def test_the_loss_by_hand() -> None:
    assert loss((0.0, 3.0), (1.0, 0.0)) == 0  # the value does not look at dimension 2
    assert loss((1.0, -2.0), (1.0, 1.0)) == loss((1.0, -2.0), None) == 5  # g = 1 is the MLE
    assert loss((1.0, -1.0), (1.0, 1.0)) == 2  # where (g · e)² would be 0
    assert loss((1.0, -2.0), (0.5, 1.0), scale=3.0) == pytest.approx(9 * loss((1.0, -2.0), (0.5, 1.0)))


class Quadratic:
    """Two critics: V(s) = s·s / 2 and 10 s_1, whatever is done."""

    module = nn.Module()

    def __call__(self, batch: Batch) -> Any:
        s = batch["context"]
        value = torch.stack([s.square().sum(1) / 2, 10 * s[:, 0]], 1)[:, None] + 0 * batch["action"].sum()
        return SimpleNamespace(value=lambda: value, mode=lambda: torch.zeros(len(s), 1))


def test_gradients_are_those_at_the_true_successor() -> None:
    s = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    child = torch.tensor([1, 2, 3, -1, 5, 6, 7, -1])
    cont = torch.tensor([1, 1, 1, 0, 1, 1, 1, 1.0])
    mask = (child >= 0)[:, None]
    columns = {"mask": mask, "child": child, "context": s, "cont": cont}
    whole = Batch({**columns, "logp": torch.zeros(8, 1), "action": torch.zeros(8, 1)})
    rows = mask[:, 0].nonzero()[:, 0]
    ctx = testing.context(models={"policy": Quadratic(), "critic": Quadratic()})
    g = ValueGradient(clip=1.0)(whole.take(rows), ctx)["value_gradient"]
    alive = cont[child[rows]][:, None]
    torch.testing.assert_close(g[:, 0], s[child[rows]] * alive)
    torch.testing.assert_close(g[:, 1], torch.tensor([10.0, 0.0]) * alive)
    clipped = ValueGradient(clip=0.5)(whole.take(rows), ctx)["value_gradient"]
    top = g.norm(dim=-1).quantile(0.5, dim=0)
    assert bool((clipped.norm(dim=-1) <= top + 1e-6).all())
    short = g.norm(dim=-1) <= top
    torch.testing.assert_close(clipped[short], g[short])


def dyna(steps: int) -> Any:
    """Pendulum, 10 steps an episode, and 4 imagined transitions pairs a real episode."""
    hidden = (16, 16)
    models = {
        "policy": SquashedPolicy(hidden), "critic": ContinuousQ(2, hidden), "target": Role(init="critic"),
        "temperature": ScalarModel(), "world": WorldModel(3, (16,)),
    }  # fmt: skip
    world = GradientLearner(
        Replay(1000, 32, name="world", stream="real"),
        {"world": harness.part("world", vaml=Term(Vaml(), stream="real"))},
        {"gradient": ValueGradient()},
        name="world",
    )
    agent = GradientLearner(
        Replay(1000, 32, draws=2, name="agent"),
        {
            "critic": harness.part("critic", td=Term(SoftTD())),
            "policy": harness.part("policy", dpg=Term(Reparam())),
            "temperature": harness.part("temperature", entropy=Term(Temperature(-1.0))),
        },
        name="agent",
    )
    return harness.make(harness.stage(
        task=Gym("Pendulum-v1", {"max_episode_steps": 10}), models=models, rollout=Episode(environments=Dyna()), n=1,
        steps=steps, curriculum=Branched(Sequential(), share=4, horizon=2), collect={"real": Real()},
        learners={"world": world, "agent": agent}, follows={"target": Ema("target", "critic", 0.005, learner="agent")},
    ))  # fmt: skip


def test_a_step_of_two_learners_on_a_shared_world() -> None:
    run = dyna(2)
    batches: list[Batch] = []
    tell = run.tell

    def heard(event: Event) -> None:
        batches.extend([event.batch] if isinstance(event, Collected) else [])
        tell(event)

    run.tell = heard
    reports = harness.train(run)
    next(reports)
    assert [len(b) for b in batches] == [11]  # nothing to imagine from yet
    before = {r: harness.weights(run, r) for r in ("world", "policy", "critic", "target", "temperature")}
    imagines = run.ctx.models["world"]
    second = next(reports)
    batch = batches[1]
    dreamt = batch["imagined"] == 1
    assert int(dreamt.sum()) == 4 * 3
    assert int((~dreamt).sum()) == 11
    for role, old in before.items():
        assert not torch.equal(old, harness.weights(run, role)), role
    assert second["world/rows"] == 32  # drawn from a ring of both, and only the real ones
    assert second["critic/rows"] == 32
    # where dreams begin: a state of the first step's episode
    first = dreamt & (batch["parent"] < 0)
    seen = {tuple(s) for s in batches[0]["context"].tolist()}
    assert {tuple(s) for s in batch["context"][first].tolist()} <= seen
    assert imagines is run.ctx.models["world"]


def test_what_is_imagined_is_what_the_world_model_predicts() -> None:
    run = dyna(1)
    reports = harness.train(run)
    next(reports)
    batch = run.collect(1)
    rows = ((batch["imagined"] == 1) & batch.decides).nonzero()[:, 0]
    dream = batch.take(rows)
    with torch.no_grad():
        told = run.ctx.models["world"](dream)
    torch.testing.assert_close(dream.successors()["context"], told.state()[:, 0])
    torch.testing.assert_close(dream["reward"], told.reward())
    assert bool((dream.successors()["cont"] == 1).all())  # cut, not over


def test_a_killed_run_ends_with_the_same_bits() -> None:
    check_resumed(lambda: dyna(3), 1)

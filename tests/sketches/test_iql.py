"""Imitation of an expert on CartPole, IQL on what chance did in a corridor, half of each batch recorded; at most a few
steps are collected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from harness import make, part, stage, train
from iql import Bootstrap, Expectile

from shuhari.batch import Batch
from shuhari.buffers.mixture import Mixture
from shuhari.buffers.offline import Offline
from shuhari.buffers.recordings import Played
from shuhari.buffers.replay import Replay
from shuhari.data import Ramp
from shuhari.learners.parts import Term
from shuhari.models.categorical import CategoricalPolicy
from shuhari.models.critics import DiscreteQ, ValueCritic
from shuhari.models.follow import Ema
from shuhari.models.tabular import Tabular
from shuhari.objectives.likelihood import Nll
from shuhari.objectives.td import QLearning
from shuhari.optimisers.adamw import AdamW
from shuhari.rollouts.episode import Episode
from shuhari.rollouts.vector.vector import VectorRollout
from shuhari.tasks.gridworld import Gridworld
from shuhari.tasks.gym import Gym
from shuhari.testing import Role, check_resumed

TASK = Gym("CartPole-v1")
CORRIDOR = Gridworld(cells=("S...G",), slip=0.0, limit=60)


def balance(observation: Any, rng: np.random.Generator) -> int:
    """Lean against the fall: about 200 steps; 500 with the cart's own place in it."""
    x, v, angle, spin = observation
    return int(0.05 * x + 0.1 * v + angle + 0.5 * spin > 0)


EXPERT = Played(f"{__file__}:balance", episodes=5, epsilon=0.1)


def offline(data: Any, **fields: Any) -> Offline:
    return Offline(data, size=128, draws=5, **fields)


def played(run: Any, episodes: int = 5) -> float:
    """The mean length of greedy episodes, one after the other."""
    import gymnasium

    env, total = gymnasium.make("CartPole-v1"), 0
    for seed in range(episodes):
        seen, over = env.reset(seed=1000 + seed)[0], False
        while not over:
            rows = Batch({"context": torch.from_numpy(seen)[None], "mask": torch.ones(1, 1, dtype=torch.bool),
                          "action": torch.zeros(1, dtype=torch.long)})  # fmt: skip
            action = int(run.ctx.models["policy"](rows).parameters()[0, 0].argmax())
            seen, _, over, cut, _ = env.step(action)
            total, over = total + 1, over or cut
    return total / episodes


def imitation(steps: int = 40) -> Any:
    policy = {"policy": CategoricalPolicy((32,))}
    parts = {"policy": part(nll=Term(Nll()))}
    return stage(parts, task=TASK, models=policy, buffer=offline(EXPERT), rollout=Episode(), steps=steps, name="bc")


def implicit(steps: int = 60) -> Any:
    """On what chance did in a corridor, where going right is best; every model is a table."""
    models = {"policy": Tabular(), "critic": DiscreteQ(()), "value": ValueCritic((), orthogonal=False)}
    parts = {
        "value": part("value", AdamW(lr=Ramp(0.05, 0.001, 60)), expectile=Term(Expectile(tau=0.9))),
        "critic": part("critic", AdamW(lr=Ramp(0.05, 0.001, 60)), td=Term(Bootstrap(gamma=0.9))),
        "policy": part("policy", AdamW(lr=Ramp(0.05, 0.001, 60)), nll=Term(Nll(), stream="awr", reduce="row")),
    }
    roles = {**models, "target": Role(init="critic")}
    follow = {"target": Ema("target", "critic", 0.5)}
    return stage(parts, task=CORRIDOR, models=roles, buffer=offline(Played("random", 40)), rollout=Episode(),
                 steps=steps, name="iql", follows=follow)  # fmt: skip


def test_imitation_of_an_expert() -> None:
    run = make(imitation())
    reports = list(train(run))
    assert reports[-1]["policy/loss/nll"] < 0.5 < reports[0]["policy/loss/nll"]
    assert played(run) > 120
    assert "env_steps" not in run.ctx.ledger and run.stage.learners["main"].buffer.card["episodes"] == 5  # type: ignore[attr-defined]


def test_advantages_pick_the_way_out_of_what_chance_did() -> None:
    run = make(implicit())
    reports = list(train(run))
    cells = Batch({"context": torch.arange(4), "mask": torch.ones(4, 1, dtype=torch.bool),
                   "action": torch.zeros(4, dtype=torch.long)})  # fmt: skip
    value = run.ctx.models["value"](cells).value()[:, 0].detach()
    best = 0.9 ** torch.tensor([3.0, 2.0, 1.0, 0.0])  # the goal pays 1, and lies so many moves away
    assert torch.allclose(value, best, atol=0.15) and bool((value.diff() > 0).all())
    assert run.ctx.models["policy"](cells).parameters()[:, 0].argmax(1).tolist() == [1, 1, 1, 1]
    assert reports[-1]["critic/loss/td"] < reports[0]["critic/loss/td"] / 10


def test_it_resumes() -> None:
    check_resumed(lambda: make(implicit(2)))


def test_half_of_each_batch_is_recorded() -> None:
    """As RLPD draws: one replay, one data set, one loss."""
    replay, data = Replay(1000, 64, collect=8, draws=2, warmup=64), Offline(EXPERT, size=64, draws=2)
    parts = {"policy": part("policy", q=Term(QLearning()))}
    models = {"policy": DiscreteQ((16,)), "target": Role(init="policy")}
    run = make(stage(parts, task=TASK, models=models, buffer=Mixture({"replay": replay, "data": data}), steps=3,
                     rollout=VectorRollout(lanes=2), follows={"target": Ema("target", "policy", 0.1)}))  # fmt: skip
    reports = list(train(run))
    assert [r["policy/rows"] for r in reports] == [128.0] * 3
    assert run.ctx.ledger["env_steps"] == 64 + 2 * 8


@pytest.mark.parametrize("n", [1, 3])
def test_targets_of_n_steps_reach_through_the_mixture(n: int) -> None:
    replay, data = Replay(1000, 64, collect=8, warmup=64), Offline(EXPERT, size=64)
    buffer = Mixture({"replay": replay, "data": data}, ahead=n)
    models = {"policy": DiscreteQ((16,)), "target": Role(init="policy")}
    parts = {"policy": part("policy", q=Term(QLearning(n=n)))}
    run = make(stage(parts, task=TASK, models=models, buffer=buffer, steps=2,
                     rollout=VectorRollout(lanes=2), follows={"target": Ema("target", "policy", 0.1)}))  # fmt: skip
    assert len(list(train(run))) == 2

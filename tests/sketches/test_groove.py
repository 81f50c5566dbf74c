"""GROOVE: the learned rule by hand, its gradient by finite differences, levels by rank, and one turn of both loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import gymnasium.spaces
import harness
import pytest
import torch
from groove import Agent, Closure, Duel, Lpg, MetaLearner, Regret, called, moved, outer, weights
from torch import nn

from shuhari.batch import Batch
from shuhari.buffers.fresh import Fresh
from shuhari.data import Payload, Problem, Status, Step, code
from shuhari.events import Collected
from shuhari.learners.gradient import GradientLearner
from shuhari.learners.parts import Term
from shuhari.models.tabular import Tabular
from shuhari.objectives.clip import Clip
from shuhari.optimisers.adamw import AdamW
from shuhari.ports import Curriculum, Environment, Evaluate, Learner, Model, Policy, Rollout, Task
from shuhari.tasks.source import Generated
from shuhari.testing import check_resumed
from shuhari.transforms.filters import Only
from shuhari.transforms.returns import Returns

policy: Policy = Agent()
rule: Model = Lpg()
evaluate: Evaluate = Closure(lambda: torch.zeros(()), ())
learner: Learner = MetaLearner(Fresh(1), AdamW())
rollout: Rollout = Duel()
curriculum: Curriculum = Regret()
PLAYERS = {r: Only("role", r, stream=r, of="rl") for r in ("agent", "rival")}


@dataclass
class Corridors:
    """Level i: a corridor of 5 cells, from the middle to a goal at its left end (even i) or at its right one."""

    limit: int = 6

    def problems(self, split: str) -> Generated:
        return Generated(lambda i: Problem("corridors", str(i), None), None)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        return {}

    def environment(self, problem: Problem) -> Corridor:
        return Corridor(4 * (int(problem.id) % 2), self.limit)

    def spaces(self) -> tuple[Any, Any]:
        return gymnasium.spaces.Discrete(5), gymnasium.spaces.Discrete(2)


@dataclass
class Corridor:
    goal: int
    limit: int
    cell: int = field(init=False, default=2)
    t: int = field(init=False, default=0)

    def reset(self, problem: Problem) -> Payload:
        self.cell, self.t = 2, 0
        return self.cell

    def step(self, action: Any) -> tuple[Payload, Mapping[str, float], Status | None]:
        self.cell, self.t = min(4, max(0, self.cell + 2 * int(action) - 1)), self.t + 1
        won = self.cell == self.goal
        status = Status.FINISHED if won else Status.TRUNCATED if self.t == self.limit else None
        return self.cell, {"task": float(won)}, status

    def snapshot(self) -> Payload:
        return {"cell": self.cell, "t": self.t}

    def restore(self, snapshot: Payload) -> Payload:
        s: Any = snapshot
        self.cell, self.t = s["cell"], s["t"]
        return self.cell


task: Task = Corridors()
environment: Environment = Corridor(0, 6)


def groove(steps: int = 1, inner: int = 2, **fields: Any) -> Any:
    meta = MetaLearner(
        Fresh(2, stream="agent"), AdamW(1e-2), {"returns": Returns(0.99, stream="agent")}, inner, **fields
    )
    rival = GradientLearner(
        Fresh(2, stream="rival"),
        {"rival": harness.part("rival", a2c=Term(Clip(role="rival", behaviour="present"), stream="rival"))},
        {"returns": Returns(0.99, stream="rival")},
        name="rival",
    )
    return harness.make(harness.stage(
        task=Corridors(), models={"agent": Agent(3), "lpg": Lpg(3, 4), "rival": Tabular()}, n=2, steps=steps,
        rollout=Duel(), curriculum=Regret(), collect=PLAYERS, learners={"lpg": meta, "rival": rival},
    ))  # fmt: skip


def rollouts(run: Any, n: int) -> list[Batch]:
    """n rollouts of the agent, as the learner keeps them."""
    out = []
    for _ in range(n):
        batch = run.apply(run.stage.collect, run.collect(2))
        batch.stream = "agent"
        batch = run.apply(run.stage.learners["lpg"].transforms, batch)
        out.append(batch.take(batch["role"] == code("agent")).flat())
    return out


class Constant:
    """A rule that says π̂ = -R and ŷ = y, both by way of what it reads, which the agent's own gradient leaves out."""

    module = nn.Module()

    def __call__(self, batch: Batch) -> Any:
        pi = batch["agent/pi"]
        return pi - pi.detach() - batch["return"][:, 0], batch["agent/y"]


def test_a_rule_that_says_minus_the_return_is_reinforce() -> None:
    run = groove()
    run.enter_stage()
    [batch], agent = rollouts(run, 1), run.ctx.models["agent"]
    with torch.no_grad():
        agent.module.logits.normal_(generator=torch.Generator().manual_seed(0))
    theta: Any = {k: w.requires_grad_() for k, w in weights(agent).items()}
    after, _, _ = moved(theta, batch, agent, Constant(), 0.5)  # type: ignore[arg-type]
    logs = theta["logits"].log_softmax(-1)[batch["context"], batch["action"]]
    decides = batch.decides
    ascent = torch.autograd.grad((batch["return"][:, 0] * logs)[decides].mean(), theta["logits"])[0]
    torch.testing.assert_close(after["logits"], theta["logits"] + 0.5 * ascent)
    torch.testing.assert_close(after["y"], theta["y"])  # KL(y ‖ y) has gradient 0
    assert ascent.norm() > 1e-3


def test_the_outer_gradient_is_that_of_finite_differences_through_two_updates() -> None:
    run = groove()
    run.enter_stage()
    agent, lpg, tape = run.ctx.models["agent"], run.ctx.models["lpg"], rollouts(run, 3)
    tape = [Batch({k: x.double() if x.is_floating_point() else x for k, x in b.whole.items()}) for b in tape]
    for m in (agent.module, lpg.module):
        m.double()
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in agent.module.parameters():
            p.normal_(generator=g)
    theta = {k: w.requires_grad_() for k, w in weights(agent).items()}
    params = list(lpg.module.parameters())

    def loss() -> torch.Tensor:
        return outer(theta, tape, agent, lpg, 2.0)

    exact = Closure(loss, params).gradients()["loss"]
    v = torch.randn(exact.shape, generator=g, dtype=torch.float64)

    def shifted(by: float) -> float:
        with torch.no_grad():
            nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(params) + by * v, params)
        return float(loss().detach())

    eps = 1e-5
    up, down = shifted(eps), shifted(-2 * eps)
    assert float(exact @ v) == pytest.approx((up - down) / (2 * eps), rel=1e-5, abs=1e-9)
    assert abs(float(exact @ v)) > 1e-4


def test_the_network_reads_backwards_and_forgets_at_the_end_of_an_episode() -> None:
    """What a row is told depends on the rows after it in its own episode, and on no others."""
    run = groove()
    run.enter_stage()
    agent, lpg = run.ctx.models["agent"], run.ctx.models["lpg"]
    [batch] = rollouts(run, 1)
    told = called(agent, weights(agent), batch)
    batch = batch.put({"agent/pi": told.log_prob()[:, 0].exp(), "agent/y": told.y})
    first = batch["episode"] == batch["episode"][0]
    row = int(first.nonzero()[1])  # the second decision of the first episode
    reward = batch["reward"].clone()
    reward[row] += 1.0
    with torch.no_grad():
        changed = (lpg(batch)[0] != lpg(batch.put({"reward": reward}))[0]).nonzero()[:, 0].tolist()
    assert changed == [0, row]


@pytest.mark.parametrize("earned", [((1.0, 1.0), 0.0), ((1.0, 0.0), 1.0)])
def test_regret_is_what_the_rival_earns_more(earned: Any) -> None:
    (rival, agent), regret = earned
    columns = {
        "mask": torch.ones(2, 1, dtype=torch.bool), "logp": torch.zeros(2, 1), "level": torch.tensor([7.0, 7.0]),
        "role": torch.tensor([code("rival"), code("agent")]), "reward": torch.tensor([[rival], [agent]]),
    }  # fmt: skip
    levels = Regret()
    levels.observe(Collected(Batch(columns)))
    assert levels.state["scores"] == {"7": regret}


def test_levels_are_replayed_by_rank() -> None:
    levels = Regret(top=2)
    levels.state["scores"] = {"0": 3.0, "1": 1.0, "2": 2.0}
    assert set(levels.ranked()) == {0, 2}
    run = groove()
    levels.state["at"], levels.replay = 10, 1.0
    assert {int(r.problem.id) for r in run.ctx.wait(levels.select(4, run.ctx))} <= {0, 2}
    levels.replay = 0.0  # the same as drawing levels at random
    assert [int(r.problem.id) for r in run.ctx.wait(levels.select(4, run.ctx))] == [10, 11, 12, 13]


def test_the_inner_loop_moves_the_agent_and_the_outer_one_the_rule() -> None:
    run = groove(steps=4, inner=2, lifetime=1)
    run.enter_stage()
    seen = [{r: harness.weights(run, r) for r in ("agent", "lpg", "rival")}]
    tape = []
    for report in harness.train(run):
        tape.append(report["lpg/tape"])
        seen.append({r: harness.weights(run, r) for r in ("agent", "lpg", "rival")})
    assert tape == [1, 2, 3, 1]
    assert [not torch.equal(a["lpg"], b["lpg"]) for a, b in pairwise(seen)] == [False, False, True, False]
    assert not torch.equal(seen[0]["agent"], seen[1]["agent"])
    assert torch.equal(seen[3]["agent"], seen[0]["agent"])  # a new life
    assert run.stage.curriculum.state["scores"]


def test_a_killed_run_ends_with_the_same_bits() -> None:
    check_resumed(lambda: groove(6, inner=2, lifetime=2), 2)

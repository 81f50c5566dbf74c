"""More samples of what is seldom solved: how many by hand, what is drawn, and what it is without a second round."""

from __future__ import annotations

import asyncio
from math import sqrt
from typing import Any

import pytest
import torch

from built import holds, one_loss
from shuhari.buffers.fresh import Fresh
from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.learners.parts import Term
from shuhari.methods.curriculum.dars.extra_samples import Deepen, count_more
from shuhari.objectives.clip import Clip
from shuhari.ports import Rollout
from shuhari.rollouts.single import Single
from shuhari.testing import context
from shuhari.transforms.advantage import Advantage
from sketches import harness
from sketches.toys import Echo

rollout: Rollout = Deepen()


def test_how_many_more_by_hand() -> None:
    """Of 8: p = 1/4 wants (4 - 3) / .375 more, or (6 - 3) / .375; p = 0 is taken for 1/16, and held to the most."""
    assert [count_more(p, 8, 32) for p in (0.25, 0.0, 0.5, 0.375, 1.0)] == [3, 24, 0, 1, 0]
    assert [count_more(p, 8, 64, "hard") for p in (0.25, 0.0, 0.5)] == [8, 56, 0]
    assert count_more(1 / 16, 8, 1000) == 27 and count_more(0.0, 8, 1000) == 27
    s = 2 * sqrt(0.1 * 0.9)
    assert count_more(0.1, 10, 99, scaled=True) == 7 == -(-(10 - 10 * s) // s)


@pytest.mark.parametrize("p", [0.05, 0.1, 0.2, 0.3, 0.45])
def test_the_sum_of_advantages_comes_to_that_of_a_problem_half_solved(p: float) -> None:
    n = 1000
    total = n + count_more(p, n, 10**9)
    assert total * 2 * p * (1 - p) == pytest.approx(n * 2 * 0.25, rel=1e-2)


class Drawn:
    """Says which answers are right; counts what is asked for."""

    accepts: dict[str, Any] = {}  # noqa: RUF012
    stamps = ()

    def __init__(self, right: int) -> None:
        self.right, self.asked = right, []  # type: ignore[var-annotated]

    async def group(self, request: Request, ctx: Any) -> list[Trajectory]:
        self.asked.append((request.n, request.key))
        found = []
        for i in range(request.n):
            reward = {"score": float(i < self.right and len(self.asked) == 1)}
            found.append(Trajectory(request, (Step.of(0, i, reward=reward),)))
        return found


def drawn(right: int, n: int = 8, **settings: Any) -> tuple[list[Any], list[Trajectory]]:
    async def grade(group: list[Trajectory], until: str = "") -> list[Trajectory]:
        return group

    of: Any = Drawn(right)
    request = Request(Problem("t", "a", 0), n, key="k")
    group = asyncio.run(Deepen(of=of, **settings).group(request, context(grade=grade)))
    assert all(t.request is request or t.request == request for t in group)
    return of.asked, group


def test_the_second_round_joins_the_group() -> None:
    asked, group = drawn(2)
    assert asked == [(8, "k"), (3, "k/1")] and len(group) == 11
    assert drawn(0)[0] == [(8, "k"), (24, "k/1")] and drawn(4)[0] == drawn(8)[0] == [(8, "k")]
    assert drawn(0, most=8)[0] == [(8, "k")]


def run_of(rollout: Any, steps: int = 3) -> Any:
    parts = {"policy": harness.part(clip=Term(Clip()))}
    return harness.make(
        harness.stage(
            parts, task=Echo("abcdefgh"), buffer=Fresh(4), steps=steps, rollout=rollout, n=4, max_new=1,
            collect={"advantage": Advantage(scale="none")},
        )
    )  # fmt: skip


def test_without_room_for_more_it_is_the_rollout_itself_bit_for_bit() -> None:
    runs = [run_of(Single()), run_of(Deepen(most=4))]
    for run in runs:
        list(harness.train(run))
    assert torch.equal(*(harness.weights(run) for run in runs))


def test_groups_grow_in_a_run_and_their_advantages_are_those_of_the_whole_group() -> None:
    run = run_of(Deepen(most=16), steps=1)
    list(harness.train(run))
    batch = next(b for b in run.ctx.seen if "advantage" in b)
    _, group, size = batch["group"].unique(return_inverse=True, return_counts=True)
    assert int(size.max()) > 4 and int(size.max()) <= 16
    for g in range(len(size)):
        rows = group == g
        outcome = batch.outcome()[rows]
        assert torch.allclose(batch["advantage"][rows, 0], outcome - outcome.mean(), atol=1e-6)


def test_numbers_of_the_paper() -> None:
    stage = holds(
        "curriculum/dars",
        {
            "rollout": Deepen(most=32, schedule="equal", scaled=False),
            "n": 8,
            "collect": {"advantage": Advantage(centre="mean", scale="none")},
        },
    )
    one_loss(stage)

"""A few problems again and again: which are chosen, by given scores, and what is asked and paid for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from built import Asked
from shuhari.data import Request, Step, Trajectory
from shuhari.events import StageStarted
from shuhari.kernel.pack import pack
from shuhari.loop.collect import add_reward
from shuhari.methods.rlvr.one_shot.few_problems import Few
from shuhari.ports import Curriculum
from shuhari.testing import context


class Graded:
    """A context that probes by given scores, one for each answer, and remembers what was probed."""

    def __init__(self, scores: Mapping[str, Sequence[float | None]]) -> None:
        self.scores, self.probed = scores, list[str]()

    def phase(self, *name: object) -> Any:
        return nullcontext()

    async def probe(self, requests: Sequence[Request], *, tag: str) -> Any:
        assert tag == "probe"
        self.probed += [r.problem.id for r in requests]
        step = Step.of(np.zeros(1, np.int32), np.ones(2, np.int32), np.zeros(2, np.float32))
        group = []
        for r in requests:
            assert r.n == len(self.scores[r.problem.id])
            for x in self.scores[r.problem.id]:
                group.append(Trajectory(r, (step,)).graded([None if x is None else {"score": x}]))
        return add_reward(pack(group), context(weights={"score": 1.0}))


curriculum: Curriculum = Few(Asked("a"))

SCORES = {
    "a": [1, 1, 1, 1],  # variance 0
    "b": [0, 1, 0, 1],  # the paper's s = (0, 1, 0, 1): a variance of 1/4
    "c": [0, 0, 0, 1],  # 3/16
    "d": [1, 1, 0, 1],  # 3/16
    "e": [None, None, None, None],  # nobody grades it
}


def chosen(of: Few, n: int, ctx: Any) -> str:
    return "".join(r.problem.id for r in asyncio.run(of.select(n, ctx)))


@pytest.mark.parametrize(("k", "expected"), [(1, "b"), (2, "bc"), (3, "bcd"), (4, "abcd"), (5, "abcde")])
def test_those_of_the_largest_variance_in_the_order_in_which_they_came(k: int, expected: str) -> None:
    ctx = Graded(SCORES)
    assert chosen(Few(Asked("abcde"), k=k, pool=5, n=4), k, ctx) == expected
    assert ctx.probed == list("abcde")


def test_they_come_in_turn_and_are_chosen_once_a_stage() -> None:
    ctx, of = Graded(SCORES), Few(Asked("abcde"), k=2, pool=5, n=4)
    assert [chosen(of, 3, ctx) for _ in range(3)] == ["bcb", "cbc", "bcb"]
    assert len(ctx.probed) == 5
    of.observe(StageStarted("next"))
    assert chosen(of, 2, ctx) == "bc" and len(ctx.probed) == 10


def test_a_restored_one_goes_on_where_it_stood() -> None:
    ctx, of, other = Graded(SCORES), Few(Asked("abcde"), k=2, pool=5, n=4), Few(Asked("abcde"), k=2, pool=5, n=4)
    chosen(of, 3, ctx)
    other.state = {**of.state}
    assert chosen(other, 3, Graded({})) == chosen(of, 3, ctx) == "cbc"


def test_without_samples_the_first_that_come() -> None:
    ctx = Graded({})
    of = Few(Asked("abcde"), k=2, pool=5, n=0)
    assert chosen(of, 5, ctx) == "ababa" and ctx.probed == [] and of.reads == ()


def test_fewer_problems_than_k_are_all_of_them() -> None:
    assert chosen(Few(Asked("bc"), k=4, pool=4, n=4), 4, Graded(SCORES)) == "bcbc"


def test_more_than_are_looked_at_is_refused() -> None:
    with pytest.raises(ValueError, match="k is 3 and pool 2"):
        Few(Asked("a"), k=3, pool=2)

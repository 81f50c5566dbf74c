"""Only what greedy decoding fails at: by given greedy scores, and what is asked, paid for and left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from built import CLIP, SCALED, Asked, holds, one_loss
from shuhari.data import Request, Sampling, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.loop.collect import add_reward
from shuhari.methods.curriculum.self.unsolved_problems import Unsolved
from shuhari.objectives.clip import Clip
from shuhari.ports import Curriculum
from shuhari.testing import context


class Graded:
    """A context that probes by given scores, and remembers what was probed."""

    sampling = Sampling(epsilon=0.5, max_new=5)

    def phase(self, *name: object) -> Any:
        return nullcontext()

    def __init__(self, score: Mapping[str, float | None]) -> None:
        self.score, self.probed = score, list[str]()

    async def probe(self, requests: Sequence[Request], *, tag: str) -> Any:
        assert tag == "probe"
        assert all((r.n, r.sampling) == (1, Sampling(greedy=True, max_new=5)) for r in requests)
        self.probed += [r.problem.id for r in requests]
        step = Step.of(np.zeros(1, np.int32), np.ones(2, np.int32), np.zeros(2, np.float32))
        grades = [None if self.score[r.problem.id] is None else {"score": self.score[r.problem.id]} for r in requests]
        group = [Trajectory(r, (step,)).graded([g]) for r, g in zip(requests, grades, strict=True)]
        return add_reward(pack(group), context(weights={"score": 1.0}))


curriculum: Curriculum = Unsolved(Asked("a"))


def chosen(ids: str, n: int, graded: Graded, **fields: Any) -> str:
    asked = asyncio.run(Unsolved(Asked(ids), **fields).select(n, graded))  # type: ignore[arg-type]
    assert all(r.info["from"] == 3.0 and r.n == 0 and r.sampling is None for r in asked)  # those of `inner`
    return "".join(r.problem.id for r in asked)


def test_greedy_scores_one_and_nought_in_turn_keep_the_second_and_fourth() -> None:
    graded = Graded({"a": 1, "b": 0, "c": 1, "d": 0})
    assert chosen("abcd", 4, graded, looks=1) == "bdbd"  # the failures, as often as there is room
    assert graded.probed == list("abcd")


def test_it_looks_on_until_there_are_enough_and_at_no_problem_twice() -> None:
    graded = Graded({"a": 1, "b": 0, "c": 1, "d": 0, "e": 1, "f": 0.5})
    assert chosen("abcdef", 3, graded) == "bdf"  # abc, then de, then f
    assert graded.probed == list("abcdef")
    graded = Graded({"a": 0, "b": 1})
    assert chosen("ab", 3, graded) == "aaa" and graded.probed == ["a", "b"]


def test_where_all_are_solved_they_come_as_they_were() -> None:
    assert chosen("abcdef", 2, Graded(dict.fromkeys("abcdef", 1)), looks=2) == "ab"


@pytest.mark.parametrize(("solved", "kept"), [(1.0, "bc"), (0.5, "c"), (0.2, "ab")])
def test_what_is_solved_is_a_setting(solved: float, kept: str) -> None:
    assert chosen("abc", 3, Graded({"a": 1, "b": 0.6, "c": 0.3}), looks=1, solved=solved)[: len(kept)] == kept


def test_what_nobody_grades_is_not_solved() -> None:
    assert chosen("ab", 1, Graded({"a": None, "b": 0})) == "a"


def test_numbers_of_the_paper() -> None:
    """Greedy reward of less than 1."""
    stage = holds(
        "curriculum/self",
        {
            "curriculum.solved": 1.0,
            "n": 8,
            "collect": SCALED,
            f"{CLIP}.objective": Clip(low=0.2, high=0.2),
        },
    )
    one_loss(stage)

"""Resting problems whose group was alike: who is skipped how often, by given outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from built import Asked
from shuhari.curricula.mixed import Mixed
from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.events import Collected
from shuhari.kernel.pack import pack
from shuhari.loop.collect import add_reward
from shuhari.ports import Curriculum
from shuhari.testing import context

curriculum: Curriculum = Mixed(Asked("a"))


def collected(groups: Mapping[str, Sequence[float | None]]) -> Collected:
    """Outcomes of each problem's group, as a step collects them."""
    step = Step.of(np.zeros(1, np.int32), np.ones(2, np.int32), np.zeros(2, np.float32))
    made = [
        Trajectory(Request(Problem("t", x, x), len(group)), (step,)).graded([None if s is None else {"score": s}])
        for x, group in groups.items()
        for s in group
    ]
    return Collected(add_reward(pack(made), context(weights={"score": 1.0})))


def select(of: Mixed, n: int) -> str:
    requests = asyncio.run(of.select(n, context()))
    return "".join(str(r.problem.id) for r in requests)


def test_an_alike_problem_misses_its_turns_and_comes_back() -> None:
    of = Mixed(Asked("abc"), turns=2)
    assert select(of, 3) == "abc"
    of.observe(collected({"a": [1, 1], "b": [0, 1], "c": [0, 0]}))
    assert select(of, 2) == "bb"  # a b c a b: both others miss a turn, a its second too
    assert select(of, 2) == "ab"  # c misses its second turn
    assert of.report() == {"curriculum/skipped": pytest.approx(4 / 11)}
    of.observe(collected({"b": [1, 1], "a": [1, 0]}))
    assert select(of, 3) == "cac"  # b rests now, c has rested


def test_no_result_changes_nothing_and_a_full_batch_is_owed() -> None:
    of = Mixed(Asked("ab"), turns=3, looks=2)
    of.observe(collected({"a": [1, None], "b": [None, None]}))
    assert select(of, 2) == "ab"  # one graded answer is no group
    of.observe(collected({"a": [1, 1], "b": [1, 1]}))
    assert select(of, 2) == "ab"  # two draws give none that is mixed: those that rest fill the batch
    assert select(Mixed(Asked("ab"), turns=0), 4) == "abab"
    assert Mixed(Asked("a")).report() == {}


def test_what_counts_as_equal() -> None:
    near = {"a": [0.5, 0.6]}
    of = Mixed(Asked("ab"), tolerance=0.2)
    of.observe(collected(near))
    assert select(of, 1) == "b"
    of = Mixed(Asked("ab"))
    of.observe(collected(near))
    assert select(of, 1) == "a"


def test_state_is_plain_and_comes_back() -> None:
    of, again = Mixed(Asked("abc")), Mixed(Asked("abc"))
    of.observe(collected({"a": [1, 1]}))
    again.state = of.state
    assert select(of, 2) == select(again, 2) == "bc"

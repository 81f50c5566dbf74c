"""Scores of candidates: what is read, and what is right, by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from shuhari.data import ContractError, Problem, Request, Step, Trajectory
from shuhari.rewards.pointwise import Pointwise, is_right, read_scores
from shuhari.testing import context
from spoken import said


@pytest.mark.parametrize(("text", "found"), [
    ("[7,5,3]", (7, 5, 3)), ("so \\boxed{ 7, 5 , 3 }.", (7, 5, 3)), ("[1,2,3] no, [7,5,3]", (7, 5, 3)), ("[7,5]", None),
    ("7,5,3", None), ("[7,5,x]", None), ("[7,,3]", None), ("[7,5,3", None), ("[1,1,1][7,5]", None), ("", None),
    ("[" * 10_000, None), ("[1," * 10_000, None), ("[" + "1 , " * 10_000, None), ("[٧,5,3]", None),
])  # fmt: skip
def test_scores_are_the_last_list(text: str, found: Any) -> None:
    assert read_scores(text, 3) == found


@pytest.mark.parametrize(("scores", "answer", "right"), [
    ((7, 5, 3), 1, True), ((7, 5, 3), 2, False), ((7, 7), 1, False), ((6, 9, 8), "2", True), ((1,), 1, True),
    ((1,), 0, False), ((0,), 0, True), (None, 1, False), ((), 1, False), ((7, 5, 3), 0, False), ((7, 5), 3, False),
])  # fmt: skip
def test_the_best_has_to_win_alone(scores: Any, answer: Any, right: bool) -> None:
    assert is_right(scores, answer) is right


def grade(text: str | None, answer: Any = "2", candidates: Any = ("x", "y"), **settings: Any) -> Any:
    problem = Problem("file", "0", "?", answer, info={"candidates": candidates})
    steps = said(text) if text is not None else [Step.closing(np.ones(1, np.int32), None, 0.0)]
    group = [Trajectory(Request(problem, 1), tuple(steps))]
    (found,) = asyncio.run(Pointwise(**settings).grade(group, context()))
    return found and found["pointwise"]


def test_grades_and_ranges() -> None:
    assert (grade("[3,7]"), grade("[7,3]"), grade("none"), grade(None)) == (1.0, 0.0, 0.0, None)
    assert (grade("[3,7]", candidates=2), grade("[3,11]")) == (1, 0)
    assert (grade("[0,7]", low=1), grade("[1,10]", low=1)) == (0, 1)
    assert grade("[1]", answer=1, candidates=1) == 1


@pytest.mark.parametrize("wrong", [{"candidates": None}, {"candidates": ()}, {"answer": "x"}, {"answer": "3"}])
def test_problems_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match="expected"):
        grade("[3,7]", **wrong)


def test_a_range_without_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="expected low < high"):
        Pointwise(low=10, high=10)

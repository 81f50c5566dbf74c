"""The length reward of a group, by the paper's formula."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from shuhari.data import Problem, Ramp, Request, Step, Trajectory
from shuhari.rewards.length import Length
from shuhari.testing import context

REQUEST = Request(Problem("t", "0", "q"))


def answer(length: int, score: float | None, forced: int = 0) -> Trajectory:
    context = np.zeros(2, np.int32)
    steps = [Step.of(context, np.zeros(length - forced, np.int32), reward={} if score is None else {"score": score})]
    if forced:
        before = Step(context, np.zeros(forced, np.int32), np.zeros(forced, np.bool_), np.full(forced, -1))
        last = np.concatenate([context, before.action])
        steps = [before, Step.of(last, steps[0].action, reward=steps[0].reward, parent=0)]
    return Trajectory(REQUEST, tuple(steps))


def grade(group: list[Trajectory], at: float = 0.0, **settings: Any) -> list[Any]:
    ctx: Any = context(count=at)
    found = asyncio.run(Length(**settings).grade(group, ctx))
    return [None if g is None else g["length"] for g in found]


def test_right_answers_from_a_half_to_minus_a_half() -> None:
    assert grade([answer(n, 1.0) for n in (10, 20, 30)]) == [0.5, 0.0, -0.5]


def test_a_wrong_answer_gains_nothing_by_being_short() -> None:
    assert grade([answer(10, 0.0), answer(20, 1.0), answer(30, 0.0)]) == [0.0, 0.0, -0.5]


def test_nothing_where_all_are_as_long() -> None:
    assert grade([answer(7, 1.0), answer(7, 0.0)]) == [0.0, 0.0] and grade([answer(7, 1.0)]) == [0.0]


def test_ungraded_answers_are_ungraded_and_no_measure() -> None:
    assert grade([answer(2, None), answer(10, 1.0), answer(20, 1.0), answer(90, float("nan"))]) == [
        None, 0.5, -0.5, None,
    ]  # fmt: skip
    assert grade([answer(2, None)]) == [None]


def test_a_forced_beginning_is_part_of_the_length() -> None:
    assert grade([answer(10, 1.0), answer(20, 1.0, forced=5), answer(30, 1.0, forced=29)]) == [0.5, 0.0, -0.5]


def test_the_weight_may_begin_after_a_warm_up() -> None:
    group, weight = [answer(10, 1.0), answer(30, 1.0)], Ramp(0.0, 0.4, over=1, after=40)
    assert grade(group, at=40, weight=weight) == [0.0, 0.0]
    assert grade(group, at=41, weight=weight) == pytest.approx([0.2, -0.2])


def test_what_counts_as_right_is_a_setting() -> None:
    assert grade([answer(10, 0.6), answer(30, 0.4)], solved=0.5) == [0.5, -0.5]
    assert grade([answer(10, 0.6), answer(30, 0.4)]) == [0.0, -0.5]

"""A reward that counts only if another passes, by hand."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.rewards.gate import Gate
from shuhari.testing import context


def grade(gate: Gate, *grades: dict[str, float] | None) -> list[float | None]:
    """What answers get that have these grades already."""
    request = Request(Problem("test", "0", None), len(grades), key="0#0")
    step = Step.of(np.array([0], np.int32), np.array([1], np.int32), np.zeros(1, np.float32))
    group = [Trajectory(request, (step,)).graded([given], by="others") for given in grades]
    found = asyncio.run(gate.grade(group, context()))
    return [None if x is None else x[gate.name] for x in found]


def test_the_grade_counts_from_the_threshold_on() -> None:
    gate = Gate(of="brief", gate="score", least=0.5)
    given = [{"score": 1.0, "brief": 0.7}, {"score": 0.5, "brief": -0.2}, {"score": 0.4, "brief": 0.9}]
    assert grade(gate, *given) == [0.7, -0.2, 0.0]
    assert grade(Gate(of="brief", least=0.5, otherwise=-1.0), given[2]) == [-1.0]


def test_what_is_not_graded_stays_ungraded() -> None:
    """Without the gate nothing is known; without the other only what does not pass."""
    given = [None, {"brief": 1.0}, {"score": 1.0}, {"score": 0.0}]
    assert grade(Gate(of="brief"), *given) == [None, None, None, 0.0]


def test_a_gate_that_reads_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="name is 'brief', a reward that it reads: expected another name"):
        Gate(of="brief", name="brief")

"""A slow stand-in waits before each step and is otherwise what it wraps."""

from __future__ import annotations

import time

import numpy as np
import pytest

from shuhari.tasks.gym import Gym


def test_each_step_waits_and_nothing_else_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    slow = Gym("CartPole-v1", wrappers=({"use": "shuhari.tasks.latency.Latency", "seconds": 0.25},))
    plain, late = Gym("CartPole-v1").make(), slow.make()
    assert slow.copies
    waits.clear()
    np.testing.assert_array_equal(plain.reset(seed=3)[0], late.reset(seed=3)[0])
    for action in (0, 1, 1, 0):
        mine, theirs = plain.step(action), late.step(action)
        np.testing.assert_array_equal(mine[0], theirs[0])
        assert mine[1:4] == theirs[1:4]
    assert waits == [0.25] * 4

"""The river: where actions lead, when they change places, and its regret."""

from __future__ import annotations

import numpy as np
import pytest

from shuhari.tasks.gym import Gym
from shuhari.tasks.worlds.riverswim import RiverSwim


def test_actions_change_places_after_each_period() -> None:
    world = RiverSwim(states=3, period=4, limit=9)
    place, _ = world.reset(seed=0)
    for t in range(9):
        before, swims_left = place, 0 if t // 4 % 2 == 0 else 1
        place, reward, over, cut, info = world.step(swims_left)
        assert place == max(before - 1, 0) and reward == (0.005 if before == 0 else 0.0)
        assert info["regret"] == pytest.approx(world.gain - reward)
        assert not over and cut == (t == 8)


def test_frequencies_are_those_of_the_table() -> None:
    world, seen = RiverSwim(), np.zeros(6)
    world.reset(seed=1)
    for _ in range(4000):
        world.place = 3
        seen[world.step(1)[0]] += 1
    assert seen / 4000 == pytest.approx([0, 0, 0.05, 0.6, 0.35, 0], abs=0.03)


def test_it_is_a_task_that_tells_its_regret() -> None:
    task = Gym("world/riverswim", {"states": 4}, tells={"regret": "column"})
    assert task.copies and "regret" in task.extras
    assert [int(s.n) for s in task.spaces()] == [4, 2]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="states is 2"):
        RiverSwim(states=2)

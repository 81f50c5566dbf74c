"""The world of a car that merges: a step by hand, its car-following model, and how chance and its expert fare."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shuhari.tasks.gym import Gym
from shuhari.tasks.worlds.merge import Merge


def placed(x: float, y: float, v: float, places: list[float], speeds: list[float], **settings: Any) -> Merge:
    world = Merge(cars=len(places), **settings)
    world.reset(seed=0)
    world.x, world.y, world.v, world.places, world.speeds = x, y, v, np.array(places), np.array(speeds)
    return world


def success(act: Any, episodes: int = 60, **settings: Any) -> float:
    world, won, rng = Merge(**settings), 0.0, np.random.default_rng(0)
    for i in range(episodes):
        seen, over = world.reset(seed=i)[0], False
        while not over:
            seen, reward, done, cut, _ = world.step(act(world, seen, rng))
            won, over = won + reward, done or cut
    return won / episodes


@pytest.mark.parametrize("cars", [6, 7])
def test_random_actions_fail_and_the_expert_does_not(cars: int) -> None:
    assert success(lambda world, seen, rng: rng.uniform(-1, 1, 2), cars=cars) <= 0.15
    assert success(lambda world, seen, rng: world.expert(seen, rng), cars=cars) >= 0.95


def test_a_step_by_hand() -> None:
    """At 10 m/s and full acceleration the speed becomes 11.2 m/s, the place 4.48 m, and 0.8 m across."""
    world = placed(0.0, -4.0, 10.0, [30.0, 90.0], [10.0, 10.0], pace=10.0)
    seen, reward, done, cut, _ = world.step(np.array([9.0, 1.0]))  # clipped
    assert (reward, done, cut) == (0.0, False, False)
    np.testing.assert_allclose(seen[:3], [4.48 / 120, -3.2 / 4, 11.2 / 15], rtol=1e-6)
    # both cars see 55 m ahead at their wanted speed: 1.5 (0 - (12 / 55)^2)
    slower = 10 - 0.4 * 1.5 * (12 / 55) ** 2
    ahead, behind = 30 + 0.4 * slower - 4.48, 90 + 0.4 * slower - 4.48 - 120
    np.testing.assert_allclose(seen[3:], [ahead / 20, (slower - 11.2) / 5, behind / 20, (slower - 11.2) / 5], rtol=1e-5)


def test_a_car_brakes_for_the_merged_one_alone() -> None:
    """20 m behind a car at 7 m/s: the wanted gap is 2 + 10 + 10 · 3 / (2 sqrt(3)), the actual one 15 m."""
    for y, gap, slower in ((-4.0, 55.0, 0.0), (0.0, 15.0, 3.0)):
        world = placed(50.0, y, 7.0, [30.0, 90.0], [10.0, 10.0], pace=20.0)
        wanted = 12.0 + 10.0 * slower / (2 * 3.0**0.5)
        found = world._follow()[0]
        assert found == pytest.approx(max(-6.0, 1.5 * (1 - 0.5**4 - (wanted / gap) ** 2)))


def test_how_an_episode_ends() -> None:
    ends: dict[tuple[float, float], tuple[float, bool]] = {
        (119.0, 0.0): (1.0, True),  # on the road at the end of the ramp
        (119.0, -4.0): (0.0, True),  # at its end, on the ramp
        (90.0, -2.7): (0.0, True),  # it touches the car beside it
        (60.0, -4.0): (0.0, False),
    }
    for (x, y), expected in ends.items():
        world = placed(x, y, 10.0, [30.0, 90.0], [10.0, 10.0])
        assert world.step(np.array([0.0, 1.0]))[1:3] == expected, (x, y)
    world = placed(0.0, -4.0, 0.0, [30.0, 90.0], [10.0, 10.0], limit=2)
    assert [world.step(np.array([-1.0, -1.0]))[1:4] for _ in range(2)] == [(0.0, False, False), (0.0, False, True)]


def test_it_is_a_task_that_copies_and_repeats() -> None:
    task = Gym("world/merge", {"cars": 6})
    assert task.copies and task.expert is not None
    first, again = (task.make().reset(seed=3)[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    with pytest.raises(ValueError, match="for each of 20 cars"):
        Gym("world/merge", {"cars": 20})

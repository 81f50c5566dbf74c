"""The world of a point mass in a maze: its rules by hand, ways by enumeration, and how chance and its expert fare."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shuhari.tasks.gym import Gym
from shuhari.tasks.worlds.point import MAPS, Point


def placed(x: float, y: float, **settings: Any) -> Point:
    """In cells; what the map does not say: no inertia."""
    world = Point(**{"maze": "open", "inertia": 0.0, **settings})
    world.reset(seed=0)
    world.x, world.y = x, y
    return world


def success(maze: str, act: Any, episodes: int = 100) -> float:
    world, won, rng = Point(maze, limit=50), 0.0, np.random.default_rng(0)
    for i in range(episodes):
        seen, over = world.reset(seed=i)[0], False
        while not over:
            seen, reward, done, cut, _ = world.step(act(world, seen, rng))
            won, over = won + reward, done or cut
    return won / episodes


@pytest.mark.parametrize("maze", MAPS)
def test_random_actions_fail_and_the_expert_does_not(maze: str) -> None:
    assert success(maze, lambda world, seen, rng: rng.uniform(-1, 1, 2)) <= 0.15
    assert success(maze, lambda world, seen, rng: world.expert(seen, rng)) == 1.0


def test_ways_are_counted_around_walls() -> None:
    """The cell that is two away as the crow flies is six steps away."""
    world = Point(maze="...\n.#.\nG#S")
    np.testing.assert_array_equal(world.distance, [[0, np.inf, 6], [1, np.inf, 5], [2, 3, 4]])
    assert [tuple(c) for c in world.starts] == [(0, 2)]
    np.testing.assert_allclose(world.expert(placed(2.5, 0.5, maze=world.maze)._look(), None), [0.0, 1.0], atol=1e-6)


def test_a_step_by_hand() -> None:
    """A map of five cells a side: places are (x - 2.5) / 2.5, velocities in units of 0.3 cells a step."""
    world = placed(2.5, 1.0, inertia=0.5, cost=0.1)
    seen, reward, done, cut, _ = world.step(np.array([1.0, -9.0]))  # clipped to (0.3, -0.3), half of it at first
    np.testing.assert_allclose(seen, [0.15 / 2.5, (0.85 - 2.5) / 2.5, 0.5, -0.5], atol=1e-6)
    assert (reward, done, cut) == (-0.1, False, False)
    seen = world.step(np.array([1.0, 0.0]))[0]  # 0.15 / 2 + 0.15 and -0.15 / 2
    np.testing.assert_allclose(seen[2:], [0.75, -0.25], atol=1e-6)


def test_noise_jumps_no_wall() -> None:
    """However large it is: behind a wall one cell thick nobody ever is, and a step is no longer than a cell."""
    world = placed(0.5, 0.5, maze=".#G\n.#.\n...\n.#.\n.#S", noise=5.0)
    places = []
    for _ in range(500):
        world.x, world.y = 0.5, 4.5
        world.step(np.zeros(2))
        places.append((world.x, world.y))
    assert max(x for x, _ in places) < 1.0 and min(y for _, y in places) == 3.5


def test_walls_stop_the_motion_across_them_alone() -> None:
    world = placed(0.9, 1.5, maze="...\n.#.\n..G")
    seen = world.step(np.array([1.0, 0.5]))[0]
    np.testing.assert_allclose([world.x, world.y], [0.9, 1.65])
    np.testing.assert_allclose(seen[2:], [0.0, 0.5])
    world = placed(0.1, 0.1, maze="...\n.#.\n..G")  # what is outside is wall
    np.testing.assert_array_equal(world.step(-np.ones(2))[0][2:], [0.0, 0.0])


def test_the_goal_ends_an_episode_and_pays() -> None:
    world = placed(3.9, 2.5, cost=1.0)
    assert world.step(np.array([1.0, 0.0]))[1:4] == (0.0, True, False)
    world = placed(1.0, 1.0, limit=2)
    assert [world.step(np.zeros(2))[1:4] for _ in range(2)] == [(0.0, False, False), (0.0, False, True)]


def test_maps_that_are_none() -> None:
    wrong = {"romos": "'rooms'", "..X\n..G": "'X'", "..\n..": "one goal", "G#.": "cannot be reached"}
    for maze, message in wrong.items():
        with pytest.raises(ValueError, match=message):
            Point(maze=maze)
    with pytest.raises(ValueError, match="below 1 cell"):
        Point(speed=1.0)


def test_it_is_a_task_that_copies_and_repeats() -> None:
    task = Gym("world/point", {"maze": "u"})
    assert task.copies and task.expert is not None
    first, again = (task.make().reset(seed=3)[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_hazards_cost_and_change_nothing_else() -> None:
    """Circles of radius 1 around (2, 1), and of 0.2 around (4.5, 0.5)."""
    hazards = [[2.0, 1.0, 1.0], [4.5, 0.5, 0.2]]
    world = placed(0.5, 1.0, speed=0.6, hazards=hazards)
    costs = [world.step(np.array([1.0, 0.0]))[-1]["cost"] for _ in range(5)]
    assert costs == [1.0, 1.0, 1.0, 1.0, 0.0]  # at 1.1, 1.7, 2.3, 2.9, 3.5
    bare, with_them = Point(noise=0.1), Point(noise=0.1, hazards=hazards)
    for one in (bare, with_them):
        one.reset(seed=1)
    for action in np.random.default_rng(0).uniform(-1, 1, (20, 2)):
        (seen, *paid, info), (again, *as_well, told) = bare.step(action), with_them.step(action)
        np.testing.assert_array_equal(seen, again)
        assert paid == as_well and info == {} and set(told) == {"cost"}
    with pytest.raises(ValueError, match=r"hazards has \(1, 2\): expected circles"):
        Point(hazards=[[1, 2]])


def test_a_limit_may_be_set_on_what_hazards_cost() -> None:
    task = Gym("world/point", {"hazards": [[3.5, 1.5, 1.0]]}, tells={"cost": "reward"})
    assert task.stamps == ("reward/task", "reward/cost") and task.copies
    np.testing.assert_allclose(task.scene.hazards, [(0, -4 / 7, 2 / 7)])

"""The world of a peg and a hole: its rules by hand, and how random actions and its expert fare."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shuhari.tasks.gym import Gym
from shuhari.tasks.worlds.insert import Insert


def placed(x: float, y: float, hole: float = 0.0, **settings: Any) -> Insert:
    world = Insert(noise=0.0, **settings)
    world.reset(seed=0)
    world.x, world.y, world.hole = x, y, hole
    return world


def success(act: Any, episodes: int = 400) -> float:
    world, won = Insert(), 0.0
    rng = np.random.default_rng(0)
    for i in range(episodes):
        seen, over = world.reset(seed=i)[0], False
        while not over:
            seen, reward, done, cut, _ = world.step(act(world, seen, rng))
            won, over = won + reward, done or cut
    return won / episodes


def test_random_actions_fail_and_the_expert_does_not() -> None:
    assert success(lambda world, seen, rng: rng.uniform(-1, 1, 2)) <= 0.05
    assert success(lambda world, seen, rng: world.expert(seen, rng)) >= 0.95


def test_the_peg_goes_in_above_the_hole_alone() -> None:
    world = placed(0.03, 0.04)
    seen, reward, done, _, _ = world.step(np.array([0.0, -1.0]))
    np.testing.assert_allclose(seen, [0.03, -0.06, 0.0, 0.0], atol=1e-6)
    assert (reward, done) == (0.0, False)
    seen, reward, done, cut, _ = world.step(np.array([1.0, -1.0]))  # the wall stops it, the bottom pays
    np.testing.assert_allclose(seen, [0.04, -0.15, 0.0, 0.0], atol=1e-6)
    assert (reward, done, cut) == (1.0, True, False)

    world = placed(0.5, 0.04)
    assert list(world.step(np.array([0.0, -1.0]))[0][1:]) == [0.0, 0.0, 1.0]  # on the surface
    np.testing.assert_allclose(world.step(np.array([-1.0, -1.0]))[0], [0.47, 0.0, 0.0, 1.0], atol=1e-6)  # slides
    np.testing.assert_allclose(world.step(np.array([9.0, 9.0]))[0], [0.5, 0.1, 0.0, 0.0], atol=1e-6)  # clipped


def test_it_slides_into_the_hole() -> None:
    world = placed(0.06, 0.0)
    assert world.step(np.array([-1.0, -0.5]))[0][1] == np.float32(-0.05)


def test_an_episode_is_cut_at_its_limit() -> None:
    world = placed(0.0, 1.0, limit=3)
    assert [world.step(np.zeros(2))[3] for _ in range(3)] == [False, False, True]


def test_it_is_a_task_that_copies_and_repeats() -> None:
    task = Gym("world/insert", {"half": 0.1})
    assert task.copies and task.expert is not None
    seen, does = task.spaces()
    assert seen.shape == (4,) and does.shape == (2,)
    first, again = (task.make().reset(seed=3)[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    with pytest.raises(ValueError, match=r"half is 0\.0"):
        Gym("world/insert", {"half": 0.0})

"""The preprocessing of Atari games: areas by enumeration, frames and rewards worked out by hand, Pong itself."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from shuhari.tasks.atari import Atari, add_areas
from shuhari.tasks.gym import Gym


class Counting(gymnasium.Env[Any, Any]):
    """A game of `end` frames: its frame t has the value 10 t at pixel t % 6 of the first row and 0 elsewhere, and pays
    t; what was done is in `done`."""

    action_space = spaces.Discrete(3)

    def __init__(self, end: int = 1000, shape: tuple[int, int] = (6, 6)) -> None:
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.end, self.t, self.done = end, 0, list[int]()

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "FIRE", "RIGHT"]

    def show(self) -> Any:
        frame = np.zeros(self.observation_space.shape or (), np.uint8)
        frame[0, self.t % 6] = min(10 * self.t, 255)
        return frame

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.done = 0, []
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.done.append(int(action))
        return self.show(), float(self.t), self.t >= self.end, False, {}


@pytest.mark.parametrize(("size", "side"), [(6, 4), (10, 4), (7, 7), (210, 84), (160, 84), (5, 1)])
def test_a_pixel_is_the_mean_of_its_area(size: int, side: int) -> None:
    """Each pixel is cut into `side` equal pieces, and `size` pieces are a part."""
    lines = np.random.default_rng(size).integers(0, 256, (size, 2), dtype=np.uint8)
    parts = np.repeat(lines.astype(np.int64), side, axis=0).reshape(side, size, 2).sum(1)
    np.testing.assert_array_equal(add_areas(lines, side), parts)


def test_a_frame_is_made_smaller_by_means() -> None:
    frame = np.array([[0, 10, 20], [30, 40, 50], [60, 70, 81]], np.uint8)
    game = Counting(shape=(3, 3))
    game.show = lambda: frame  # type: ignore[method-assign]
    seen, _ = Atari(game, noops=0, side=2, fire=False).reset(seed=0)
    # of nine quarters of a part 4 are a corner's, 2 each of its neighbours' and 1 the middle's, each mean of 9 rounded
    by_hand = [[(4 * 0 + 2 * 10 + 2 * 30 + 40) / 9, (4 * 20 + 2 * 10 + 2 * 50 + 40) / 9],
               [(4 * 60 + 2 * 30 + 2 * 70 + 40) / 9, (4 * 81 + 2 * 50 + 2 * 70 + 40) / 9]]  # fmt: skip
    np.testing.assert_array_equal(seen, np.rint(by_hand).astype(np.uint8))


def test_a_decision_repeats_and_shows_the_brighter_of_the_last_two_frames() -> None:
    game = Counting()
    env = Atari(game, noops=0, side=6, fire=False)
    env.reset(seed=0)
    seen, reward, terminated, truncated, info = env.step(2)
    assert game.done == [2] * 4 and (reward, info["raw_reward"]) == (1.0, 1 + 2 + 3 + 4)
    expected = np.zeros((6, 6), np.uint8)
    expected[0, 3], expected[0, 4] = 30, 40
    np.testing.assert_array_equal(seen, expected)
    assert not terminated and not truncated and seen.dtype == np.uint8
    assert Atari(Counting(), clip=False, noops=0, side=6, fire=False).reset(seed=0)[0].max() == 0


def test_an_end_within_the_frames_of_a_decision_ends_it() -> None:
    game = Counting(end=6)
    env = Atari(game, noops=0, side=6, fire=False, clip=False)
    env.reset(seed=0)
    assert env.step(0)[2] is False
    _, reward, terminated, *_ = env.step(1)
    assert terminated is True and reward == 5 + 6 and game.t == 6


def test_an_episode_begins_with_no_actions_and_fire() -> None:
    game = Counting()
    env = Atari(game, noops=3, side=6)
    counts = set()
    for seed in range(30):
        env.reset(seed=seed)
        waited = game.done.index(1)
        assert game.done == [0] * waited + [1] * 4 + [2] * 4
        counts.add(waited)
    assert counts == {1, 2, 3}
    env.reset(seed=3)
    first = list(game.done)
    env.reset(seed=3)
    assert game.done == first


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"side is 7: expected at most 6"):
        Atari(Counting(), side=7)
    with pytest.raises(ValueError, match=r"skip is 0: expected a whole number of 1 or more"):
        Atari(Counting(), side=6, skip=0)
    with pytest.raises(ValueError, match=r'expected grey frames .*obs_type = "grayscale"'):
        Atari(gymnasium.make("CartPole-v1"))


def test_pong_is_four_small_grey_pictures_and_is_restored() -> None:
    pytest.importorskip("ale_py")
    with pytest.raises(ValueError, match=r"skips 4 frames itself: expected frameskip = 1"):
        Gym("ALE/Pong-v5", kwargs={"obs_type": "grayscale"}, wrappers=("shuhari.tasks.atari.Atari",))
    task = Gym("PongNoFrameskip-v4", kwargs={"obs_type": "grayscale"}, wrappers=("shuhari.tasks.atari.Atari",), stack=4)
    space = task.spaces()[0]
    assert space.shape == (4, 84, 84) and space.dtype == np.uint8
    problem = task.problems("train")[0]
    episode, other = task.environment(problem), task.environment(problem)
    episode.reset(problem)
    for action in (2, 3, 0):
        episode.step(action)
    np.testing.assert_array_equal(other.restore(episode.snapshot()), episode.last)
    for action in (3, 3, 2):
        seen, rewards, _ = episode.step(action)
        mine = other.step(action)
        np.testing.assert_array_equal(mine[0], seen)
        assert mine[1] == rewards

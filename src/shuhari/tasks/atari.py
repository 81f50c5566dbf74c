"""The standard preprocessing of Atari games as one wrapper, without OpenCV: no-ops at the start, frames skipped, a
small grey picture, rewards clipped to their sign. And what MinAtar's games need to follow from their seed.

As in Mnih et al. 2015, "Human-level control through deep reinforcement learning", methods, and the wrappers of OpenAI's
baselines (NoopReset, MaxAndSkip, FireReset, ClipReward, WarpFrame). Left out: the loss of a life as an end
(EpisodicLife), for an episode here begins at its seed; stacked frames, which are `task.stack`. Axes: `H` x `W` pixels
of the screen, `S` pixels of a side.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from shuhari.data import Array
from shuhari.tasks.running import RAW

FIRE, SECOND = 1, 2  # the actions by which a game that waits for one is begun


class Unstuck(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A game of MinAtar that begins each episode without a last action. Every tenth action or so such a game repeats
    the one before, as released also the last one of the episode before, so that an episode would not follow from its
    seed alone."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.unwrapped.game.last_action = 0  # type: ignore[attr-defined]  # no action
        return super().reset(seed=seed, options=options)


class Atari(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Decides once in `skip` frames about a grey picture of `side` x `side` pixels, uint8 [S, S]: the brighter one of
    the last two frames at each pixel, made smaller by the means of areas.

    An episode begins with 1 to `noops` frames of no action, and with `fire` in a game that has that action with two
    decisions that begin it. `clip` gives the sign of a reward, and the reward itself as `raw_reward` in `info`. In a
    recipe, for an environment that shows grey frames one by one: `task.kwargs = {obs_type = "grayscale"}`,
    `task.wrappers = ["shuhari.tasks.atari.Atari"]`, `task.stack = 4`. Raises ValueError for observations of another
    kind, for an environment that skips frames itself, and for numbers out of range.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        noops: int = 30,
        skip: int = 4,
        side: int = 84,
        fire: bool = True,
        clip: bool = True,
    ) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 2 or space.dtype != np.uint8:
            raise ValueError(f"Atari: the observations are {space}: expected grey frames [H, W] of uint8, "
                             'by task.kwargs = {obs_type = "grayscale"}')  # fmt: skip
        if (own := getattr(env.unwrapped, "_frameskip", 1)) != 1:
            raise ValueError(f"Atari: the environment skips {own} frames itself: expected frameskip = 1 in "
                             "task.kwargs, or an id such as PongNoFrameskip-v4")  # fmt: skip
        for name, value, least in (("noops", noops, 0), ("skip", skip, 1), ("side", side, 1)):
            if value < least:
                raise ValueError(f"Atari: {name} is {value}: expected a whole number of {least} or more")
        if side > min(space.shape):
            raise ValueError(f"Atari: side is {side}: expected at most {min(space.shape)}, the shorter side of a frame")
        self.noops, self.skip, self.clip = noops, skip, clip
        has_fire = "FIRE" in getattr(env.unwrapped, "get_action_meanings", list)()
        self.starts = (FIRE, SECOND) if fire and has_fire else ()
        self.observation_space = gymnasium.spaces.Box(0, 255, (side, side), np.uint8)
        self.side = side

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        frame, info = self.env.reset(seed=seed, options=options)
        for _ in range(int(self.unwrapped.np_random.integers(1, self.noops + 1)) if self.noops else 0):
            frame, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                frame, info = self.env.reset()
        for action in self.starts:
            frame, _, over, info = self._skip(action)
            if any(over):
                frame, info = self.env.reset()
        return self._shrink(frame), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        frame, reward, over, info = self._skip(action)
        if self.clip:
            return self._shrink(frame), float(np.sign(reward)), *over, {**info, RAW: reward}
        return self._shrink(frame), reward, *over, info

    def _skip(self, action: Any) -> tuple[Array, float, tuple[bool, bool], dict[str, Any]]:
        """Repeats an action; returns the brighter of the last two frames, the sum of rewards, whether it terminated or
        was truncated, and the last `info`."""
        total, frames, info = 0.0, list[Array](), dict[str, Any]()
        terminated = truncated = False
        for _ in range(self.skip):
            frame, reward, terminated, truncated, info = self.env.step(action)
            frames, total = [*frames[-1:], frame], total + float(reward)
            if terminated or truncated:
                break
        return np.max(frames, axis=0), total, (bool(terminated), bool(truncated)), info

    def _shrink(self, frame: Array) -> Array:
        """Returns [S, S] uint8 of a frame [H, W]: the mean of each pixel's area, halves rounded up."""
        total = add_areas(add_areas(frame, self.side).T, self.side).T
        return ((2 * total + frame.size) // (2 * frame.size)).astype(np.uint8)


def add_areas(frame: Array, side: int) -> Array:
    """Returns [S, W] int64 of whole numbers [H, W]: the sum over each of S equal parts of an axis of H pixels, in which
    a pixel counts as S, so that the sum is H times the mean."""
    size = len(frame)
    whole, rest = np.divmod(np.arange(side + 1) * size, side)  # the edge between parts i - 1 and i lies at i H / S
    below = np.zeros((size + 1, *frame.shape[1:]), np.int64)
    np.cumsum(frame, axis=0, out=below[1:])
    cut = frame[np.minimum(whole, size - 1)]
    sums: Array = np.diff(side * below[whole] + rest[:, None] * cut, axis=0)
    return sums

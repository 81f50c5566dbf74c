"""Peg in a hole: a point in the plane above a surface with a slot, rewarded for reaching its bottom.

Left out: rotation, forces, several stages, two arms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.bounds import AtLeast0, Length, Positive, Share, check
from shuhari.data import Array
from shuhari.kernel.registry import register
from shuhari.tasks.lanes import Stepped, at_least, at_most, look
from shuhari.tasks.scene import Scene


@register("world", "insert")
@dataclass(eq=False)
class Insert(gymnasium.Env[Array, Array]):
    """A peg that must be inserted into a hole: a point in the plane above a surface with a slot, with a sparse reward
    for its bottom.

    Observation [4]: the peg's place (x, y), the centre of the hole, and 1 if the peg touches the surface at y = 0 (else
    0). Action [2] in [-1, 1]: a move. The reward is 1 at the bottom, which ends the episode, and 0 before: the return
    is success.

    The peg starts at x uniform in [-1, 1] and y in [0.6, 1], the hole's centre is uniform in [-0.6, 0.6]. At the
    surface the peg stops unless it is above the hole; inside the hole the walls stop it.
    """

    half: Positive = 0.04
    """Half the width of the hole; smaller is harder."""
    stride: Positive = 0.1
    """Distance that an action of 1 moves the peg."""
    depth: Positive = 0.15
    """Depth below the surface that the peg must reach."""
    noise: AtLeast0 = 0.01
    """Standard deviation of normal noise on each move, in either direction."""
    slide: Share = 0.3
    """Share of a sideways move that remains while the peg touches the surface; 0 makes it stick."""
    limit: Length = 30
    """Number of steps after which an episode is truncated."""
    moves: ClassVar = "x", "y", "hole", "at"

    def __post_init__(self) -> None:
        check(self)
        self.observation_space = spaces.Box(-2.0, 2.0, (4,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.x = self.y = self.hole = 0.0
        self.at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        u = self.np_random.uniform(size=3)
        self.x, self.y, self.hole, self.at = 2 * float(u[0]) - 1, 0.6 + 0.4 * float(u[1]), 1.2 * float(u[2]) - 0.6, 0
        return self._look(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        moved = self.stride * np.clip(action, -1.0, 1.0) + self.noise * self.np_random.standard_normal(2)
        dx, dy = float(moved[0]), float(moved[1])
        low, high = self.hole - self.half, self.hole + self.half
        inside, touches = self.y < 0, self.y == 0
        x = min(max(self.x + dx * (self.slide if touches else 1.0), -1.5), 1.5)
        if inside:
            x = min(max(x, low), high)
        y = min(self.y + dy, 1.5)
        if y < 0 and not inside and not low <= x <= high:
            y = 0.0
        self.x, self.y, self.at = x, max(y, -self.depth), self.at + 1
        done = y <= -self.depth
        return self._look(), float(done), done, self.at >= self.limit and not done, {}

    def step_lanes(self, lanes: Any, actions: Array) -> Stepped:
        x, y, hole, lanes.at = lanes.x, lanes.y, lanes.hole, lanes.at + 1
        dx, dy = (self.stride * np.clip(actions, -1.0, 1.0) + self.noise * lanes.draw("standard_normal", 2)).T
        low, high = hole - self.half, hole + self.half
        inside, touches = y < 0, y == 0
        x = at_most(at_least(x + dx * np.where(touches, self.slide, 1.0), -1.5), 1.5)
        x = np.where(inside, at_most(at_least(x, low), high), x)
        y = at_most(y + dy, 1.5)
        y = np.where((y < 0) & ~inside & ~((low <= x) & (x <= high)), 0.0, y)
        lanes.x, lanes.y, done = x, at_least(y, -self.depth), y <= -self.depth
        seen = look(x, lanes.y, hole, lanes.y == 0)
        return seen, done.astype(float), done, (lanes.at >= self.limit) & ~done, {}

    @property
    def scene(self) -> Scene:
        """The view relative to the centre of the hole: the surface to its left and right, and its bottom."""
        far, wide = 2.1, 2 * self.half  # the peg is within 1.5, the hole within 0.6
        walls = tuple((x, -self.depth, far - self.half, self.depth) for x in (-far, self.half))
        bottom = (-self.half, -self.depth, wide, self.depth / 3)
        whole = (-far, -self.depth, 2 * far, self.depth + 1.5)
        names = "x from the hole", "y"
        return Scene(whole, walls, (bottom,), lambda o: (float(o[0] - o[2]), float(o[1])), names=names)

    def expert(self, observation: Any, rng: Any) -> Array:
        """Goes to just above the hole, then straight down; uses only the observation."""
        x, y, hole, _ = (float(v) for v in observation)
        away = (hole - x) / self.stride
        aligned = abs(hole - x) < self.half / 2
        down = -1.0 if aligned or y < 0 else (0.15 - y) / self.stride
        return np.clip(np.array([away, down], np.float32), -1.0, 1.0)

    def _look(self) -> Array:
        return np.array([self.x, self.y, self.hole, float(self.y == 0)], np.float32)

"""A walk over a field whose cells have weights: what counts is the weight of the area that was seen, once.

Source: Prajapat, Mutny, Zeilinger and Krause, "Submodular Reinforcement Learning" (2023), section 6, the environments
with weighted coverage; here smaller, with slips. Left out: walls.

Axes: `P` cells, row by row, `A` = 5 actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.bounds import Bounds, Count, Length, Seed, Share, check
from shuhari.data import Array
from shuhari.kernel.registry import register
from shuhari.tasks.lanes import Stepped

MOVES = np.array(((0, 0), (-1, 0), (0, 1), (1, 0), (0, -1)))  # stay, up, right, down, left
_HILLS, _WIDTH = 3, 0.18  # hills of the field, and their standard deviation as a share of the side


@register("world", "coverage")
@dataclass(eq=False)
class Coverage(gymnasium.Env[Any, Any]):
    """A walk over a square field for a fixed time, in which each cell that comes into view is worth its weight, once.

    From a cell one sees those at most `reach` moves away. Weights sum up to 1: three hills on a low plain. The reward
    is 0 but at the last step, which pays the weight of all that was seen after a step. Observation: row, column and
    step, each scaled to [-1, 1]. `info` has `covers` [P], the weight of each cell that is seen now and 0 for others,
    and `at`, the step.
    """

    side: Annotated[int, Bounds(2, 100)] = 10
    """Side of the square field, in cells."""
    horizon: Length = 30
    """Number of steps of an episode."""
    reach: Count = 1
    """Number of moves up to which cells are seen; 0 sees the own cell alone."""
    slip: Share = 0.1
    """Probability that a random move is made instead of the chosen one; 0 is deterministic."""
    field: Seed = 0
    """Seed of the weights; each number is another field."""
    moves: ClassVar = "cell", "at", "seen"

    def __post_init__(self) -> None:
        check(self)
        n = self.side
        rng = np.random.default_rng(self.field)
        here = np.stack(np.divmod(np.arange(n * n), n), 1)
        middle = rng.uniform(0, n - 1, (_HILLS, 2))
        square = ((here[:, None] - middle) ** 2).sum(2)
        weight = np.exp(-square / (2 * (_WIDTH * n) ** 2)).sum(1) + 0.02
        self.weight = weight / weight.sum()
        far = np.abs(here[:, None] - here[None, :]).sum(2)
        self.covers = (far <= self.reach) * self.weight  # [P, P]
        self.start = (n * n + n) // 2 if n % 2 == 0 else n * n // 2
        bound = np.ones(3, np.float32)
        self.observation_space, self.action_space = spaces.Box(-bound, bound), spaces.Discrete(len(MOVES))
        self.cell, self.at, self.seen = self.start, 0, np.zeros(n * n, bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.at, self.seen = self.start, 0, np.zeros(self.side**2, bool)
        return self._observe(self.cell, self.at), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        u, other = float(self.np_random.random()), int(self.np_random.integers(len(MOVES)))
        self.cell = int(self._move(self.cell, other if u < self.slip else int(action)))
        self.at, covers = self.at + 1, self.covers[self.cell]
        self.seen = self.seen | (covers > 0)
        over = self.at >= self.horizon
        reward = float((self.seen * self.weight).sum()) if over else 0.0
        return self._observe(self.cell, self.at), reward, over, False, {"covers": covers, "at": self.at}

    def step_lanes(self, lanes: Any, actions: Array) -> Stepped:
        u, other = lanes.draw("random"), lanes.draw("integers", len(MOVES))
        lanes.cell = self._move(lanes.cell, np.where(u < self.slip, other, actions))
        lanes.at, covers = lanes.at + 1, self.covers[lanes.cell]
        lanes.seen = lanes.seen | (covers > 0)
        over = lanes.at >= self.horizon
        reward = np.where(over, (lanes.seen * self.weight).sum(1), 0.0)
        tells = {"covers": covers, "at": lanes.at}
        return self._observe(lanes.cell, lanes.at), reward, over, np.zeros(len(over), bool), tells

    def _move(self, cell: Any, action: Any) -> Any:
        there = np.stack(np.divmod(cell, self.side), -1) + MOVES[action]
        row, column = np.moveaxis(there.clip(0, self.side - 1), -1, 0)
        return row * self.side + column

    def _observe(self, cell: Any, at: Any) -> Array:
        row, column = np.divmod(cell, self.side)
        last = self.side - 1
        seen = np.stack([row / last, column / last, at / self.horizon], -1)
        return np.asarray(2 * seen - 1, np.float32)

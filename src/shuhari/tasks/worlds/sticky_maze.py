"""A walk through a small maze for a fixed time, with sticky actions: tables with exactly known values.

Axes: `P` places (cell and last action), `A` = 4 moves, `T` steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.bounds import Length, Seed, Share, check
from shuhari.data import Array, code
from shuhari.kernel.registry import register
from shuhari.tasks.scene import Scene
from shuhari.tasks.worlds.finite_horizon import Table

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left
A = len(MOVES)
_TRIES = 1000  # attempts to draw a maze


@register("world", "sticky_maze")
@dataclass(eq=False)
class StickyMaze(gymnasium.Env[Any, Any]):
    """A walk through a small random maze for a fixed time, with sticky actions and exact tables.

    Reaching the goal pays 1, once, and the walker stays there. Observation: step * P + place, with place = cell * 5 +
    the last action (4: none yet). `p` [P, A, P], `r` [P, A] and `first`, with the horizon, are its `table`. Raises
    ValueError if no maze of that size has such a distance.
    """

    side: Length = 4
    """Side of the square maze, in cells."""
    distance: Length = 3
    """Number of moves from the start to the goal on a shortest path."""
    horizon: Length = 10
    """Number of steps of an episode, which never ends earlier."""
    sticky: Share = 0.25
    """Probability that the last action is repeated instead of the chosen one; 0 is deterministic."""
    walls: Share = 0.2
    """Probability that a cell is a wall."""
    layout: Seed = 0
    """Seed of the maze; each number is another one."""

    def __post_init__(self) -> None:
        check(self)
        free, start, self.goal = self._draw()
        cells = self.side * self.side
        places = cells * (A + 1)
        moved = np.arange(cells)[:, None].repeat(A, 1)
        for cell in np.flatnonzero(free.ravel()).tolist():
            for a in range(A):
                moved[cell, a] = self._move(free, cell, a) if cell != self.goal else cell
        self.p, self.r = np.zeros((places, A, places)), np.zeros((places, A))
        for cell in range(cells):
            for last in range(A + 1):
                for a in range(A):
                    for done, chance in ((a, 1 - self.sticky), (last, self.sticky)) if last < A else ((a, 1.0),):
                        there = int(moved[cell, done])
                        self.p[cell * (A + 1) + last, a, there * (A + 1) + done] += chance
                        self.r[cell * (A + 1) + last, a] += chance * (there == self.goal != cell)
        self.first, self.places = start * (A + 1) + A, places
        self.observation_space = spaces.Discrete((self.horizon + 1) * places)
        self.action_space = spaces.Discrete(A)
        self.place, self.at = self.first, 0
        self._moved = moved

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.at = self.first, 0
        return self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        cell, last = divmod(self.place, A + 1)
        done = last if last < A and self.np_random.random() < self.sticky else int(action)
        there, self.at = int(self._moved[cell, done]), self.at + 1
        self.place = there * (A + 1) + done
        over = self.at == self.horizon
        return self.at * self.places + self.place, float(there == self.goal != cell), over, False, {}

    @property
    def table(self) -> Table:
        return Table(self.p, self.r, self.first, self.horizon)

    @property
    def scene(self) -> Scene:
        """The scene: cells of side 1, the first row at the top."""
        free, _, goal = self._draw()
        walls = tuple((*self._corner(int(cell)), 1.0, 1.0) for cell in np.flatnonzero(~free))
        return Scene((0.0, 0.0, self.side, self.side), walls, ((*self._corner(goal), 1.0, 1.0),), self._find)

    def _corner(self, cell: int) -> tuple[float, float]:
        row, column = divmod(cell, self.side)
        return float(column), float(self.side - 1 - row)

    def _find(self, observation: Any) -> tuple[float, float]:
        x, y = self._corner(int(observation) % self.places // (A + 1))
        return x + 0.5, y + 0.5

    def _draw(self) -> tuple[Array, int, int]:
        """Returns ([side, side] the free cells, the start's cell, the goal's)."""
        rng = np.random.default_rng(code("maze", self.layout, self.side, self.distance))
        for _ in range(_TRIES):
            free = rng.random((self.side, self.side)) >= self.walls
            start = int(rng.integers(free.size))
            if free.flat[start]:
                far = np.flatnonzero(self._distances(free, start) == self.distance)
                if len(far):
                    return free, start, int(rng.choice(far))
        raise ValueError(f"a maze of side {self.side}: none was {self.distance} moves from another in {_TRIES} draws")

    def _distances(self, free: Array, start: int) -> Array:
        """Returns [cells] moves from the start; -1 for cells that cannot be reached."""
        found, edge, moves = np.full(free.size, -1), [start], 0
        found[start] = 0
        while edge:
            moves += 1
            edge = [
                c
                for c in {
                    self._move(free, c, a)
                    for c in edge
                    for a in range(A)
                }
                if found[c] < 0
            ]
            found[edge] = moves
        return found

    def _move(self, free: Array, cell: int, a: int) -> int:
        i, j = (x + d for x, d in zip(divmod(cell, self.side), MOVES[a], strict=True))
        inside = 0 <= i < self.side and 0 <= j < self.side
        return i * self.side + j if inside and free[i, j] else cell

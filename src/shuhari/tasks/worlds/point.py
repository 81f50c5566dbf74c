"""A point mass in a maze of square cells that must reach a goal around walls.

Left out: contact forces, several goals, an observed goal. Axes: `H` rows of cells, `W` cells of a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.bounds import AtLeast0, Length, Positive, ShareBelow1, check
from shuhari.data import Array, nearest
from shuhari.kernel.registry import register
from shuhari.tasks.lanes import Stepped, look, power
from shuhari.tasks.scene import Box, Scene

WALL, FREE, START, GOAL = "#", ".", "S", "G"
MAPS = {
    "open": ".....\n.....\n....G\n.....\n.....",
    "u": "###..\nG....\n###..\n.....\n.....",
    "rooms": "...#...\n.......\n...#...\n#.###.#\n...#...\n......G\n...#...",
}


@register("world", "point")
@dataclass(eq=False)
class Point(gymnasium.Env[Array, Array]):
    """A point mass in a maze: it steers around walls to a goal, with a sparse reward.

    Observation [4]: the place (x to the right, y upwards; the map is from -1 to 1 on its longer side) and the velocity
    in units of `speed`. Action [2] in [-1, 1]: the target velocity. The reward is 1 at the goal, which ends the
    episode. Everything outside the map is wall, and walls stop only the motion across them.

    If there are hazards, `info` has `cost`, 1 after a step that ends in one of them, else 0 (the simplest of Safety
    Gym's: Ray et al. 2019, "Benchmarking Safe Exploration in Deep Reinforcement Learning"). Raises ValueError for an
    invalid map, one without exactly one goal, or with a start that does not lead there.
    """

    maze: str = "rooms"
    """Name of a map (`open`, `u`, `rooms`), or rows of cells, one a line: `#` wall, `.` free, `G` goal, `S` starts
    (without any, all free cells)."""
    speed: Positive = 0.3
    """Largest speed in either direction, in cells per step, below 1 so that no wall is jumped."""
    inertia: ShareBelow1 = 0.5
    """Share of the velocity kept from step to step; 0 uses the action at once."""
    cost: AtLeast0 = 0.0
    """Amount subtracted from the reward of every step; raise it to favour short paths."""
    noise: AtLeast0 = 0.0
    """Standard deviation of normal noise on each step, in cells; 0 is deterministic."""
    hazards: Sequence[Sequence[float]] = ()
    """Circles (x, y, radius), in cells from the lower left corner, in which a step has a cost; they do not stop motion
    or change the reward."""
    limit: Length = 100
    """Number of steps after which an episode is truncated."""
    moves: ClassVar = "x", "y", "vx", "vy", "at"

    def __post_init__(self) -> None:
        check(self)
        if not self.speed < 1:
            raise ValueError(f"speed is {self.speed}: expected below 1 cell a step, or walls could be jumped")
        if not isinstance(self.hazards, Sequence):
            raise ValueError(f"Point: hazards is {self.hazards!r}: expected circles (x, y, radius)")
        for hazard in self.hazards:
            if len(hazard) != 3 or not hazard[2] > 0:
                raise ValueError(f"hazards has {tuple(hazard)}: expected circles (x, y, radius), of a radius above 0")
        cells = read_map(self.maze)  # [H, W], the lowest row first
        self.free = cells != WALL
        row, column = np.argwhere(cells == GOAL)[0]
        self.goal = int(row), int(column)
        self.distance = distances(self.free, self.goal)
        starts = np.argwhere(cells == START) if (cells == START).any() else np.argwhere(cells == FREE)
        if not np.isfinite(self.distance[tuple(starts.T)]).all():
            raise ValueError("maze: the goal cannot be reached from every cell where an episode begins")
        self.starts, self.shape = starts, cells.shape
        self.half = max(cells.shape) / 2
        self.observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.x = self.y = self.vx = self.vy = 0.0  # in cells, from the lower left corner; cells a step
        self.at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        row, column = self.starts[int(self.np_random.integers(len(self.starts)))]
        u = self.np_random.uniform(size=2)
        self.x, self.y, self.vx, self.vy, self.at = float(column + u[0]), float(row + u[1]), 0.0, 0.0, 0
        return self._look(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        wanted, keep = np.clip(action, -1.0, 1.0) * self.speed, self.inertia
        self.vx = keep * self.vx + (1 - keep) * float(wanted[0])
        self.vy = keep * self.vy + (1 - keep) * float(wanted[1])
        dx, dy = self.vx, self.vy
        if self.noise:
            shaken = self.noise * self.np_random.standard_normal(2)
            dx, dy = (float(np.clip(d, -1.0, 1.0)) for d in (dx + shaken[0], dy + shaken[1]))  # no wall is jumped
        if self._is_free(self.x + dx, self.y):
            self.x += dx
        else:
            self.vx = 0.0
        if self._is_free(self.x, self.y + dy):
            self.y += dy
        else:
            self.vy = 0.0
        self.at += 1
        done = (int(self.y), int(self.x)) == self.goal
        return self._look(), float(done) - self.cost, done, self.at >= self.limit and not done, self._tell()

    def step_lanes(self, lanes: Any, actions: Array) -> Stepped:
        (H, W), (row, column) = self.shape, self.goal
        wanted, keep = (np.clip(actions, -1.0, 1.0) * self.speed).T, self.inertia
        v = keep * np.array([lanes.vx, lanes.vy]) + (1 - keep) * wanted.astype(float)  # [2, N]
        d = v
        if self.noise:
            d = np.clip(v + self.noise * lanes.draw("standard_normal", 2).T, -1.0, 1.0)
        x, y = lanes.x + d[0], lanes.y + d[1]
        inside = (x >= 0) & (x < W)
        goes = inside & self.free[lanes.y.astype(int), np.where(inside, x, 0.0).astype(int)]
        lanes.x, lanes.vx = x, _ = np.where(goes, (x, v[0]), (lanes.x, np.zeros(len(x))))
        inside = (y >= 0) & (y < H)
        goes = inside & self.free[np.where(inside, y, 0.0).astype(int), x.astype(int)]
        lanes.y, lanes.vy = y, _ = np.where(goes, (y, v[1]), (lanes.y, np.zeros(len(y))))
        lanes.at = lanes.at + 1
        done = (y.astype(int) == row) & (x.astype(int) == column)
        place = (x - W / 2) / self.half, (y - H / 2) / self.half
        seen = look(*place, lanes.vx / self.speed, lanes.vy / self.speed)
        near = [power(x - a, 2) + power(y - b, 2) < r**2 for a, b, r in self.hazards]
        tells = {"cost": np.any(near, 0).astype(float)} if near else {}
        return seen, done - self.cost, done, (lanes.at >= self.limit) & ~done, tells

    def _tell(self) -> dict[str, Any]:
        hurt = any((self.x - x) ** 2 + (self.y - y) ** 2 < r**2 for x, y, r in self.hazards)
        return {"cost": float(hurt)} if self.hazards else {}

    @property
    def scene(self) -> Scene:
        walls = tuple(self._box(int(row), int(column)) for row, column in np.argwhere(~self.free))
        left, bottom, side, _ = self._box(0, 0)
        whole = left, bottom, self.shape[1] * side, self.shape[0] * side
        hazards = tuple((left + x * side, bottom + y * side, r * side) for x, y, r in self.hazards)
        return Scene(whole, walls, (self._box(*self.goal),), hazards=hazards)

    def _box(self, row: int, column: int) -> Box:
        """Returns a cell in the units of an observation."""
        H, W = self.shape
        return (column - W / 2) / self.half, (row - H / 2) / self.half, 1 / self.half, 1 / self.half

    def expert(self, observation: Any, rng: Any) -> Array:
        """Goes from cell to cell along a shortest path, as fast as possible; uses only the observation."""
        return self.head(observation, self.distance)

    def head(self, observation: Any, distance: Array) -> Array:
        """Returns [2] the action towards the centre of the neighbouring cell with the smallest `distance` [H, W]."""
        H, W = self.shape
        x, y = (float(observation[i]) * self.half + (W, H)[i] / 2 for i in (0, 1))
        row, column = min(max(int(y), 0), H - 1), min(max(int(x), 0), W - 1)
        near = [(row, column), *_neighbours(row, column, self.free)]
        to = min(near, key=lambda cell: float(distance[cell]))
        away = np.array([to[1] + 0.5 - x, to[0] + 0.5 - y]) / self.speed
        coasts = self.inertia * np.asarray(observation[2:4], np.float64)
        return np.clip((away - coasts) / (1 - self.inertia), -1.0, 1.0).astype(np.float32)

    def _is_free(self, x: float, y: float) -> bool:
        H, W = self.shape
        return 0 <= x < W and 0 <= y < H and bool(self.free[int(y), int(x)])

    def _look(self) -> Array:
        H, W = self.shape
        place = (self.x - W / 2) / self.half, (self.y - H / 2) / self.half
        return np.array([*place, self.vx / self.speed, self.vy / self.speed], np.float32)


def read_map(maze: str) -> Array:
    """Returns [H, W] the cells of a map, its lowest row first. Raises ValueError for an invalid map."""
    if maze not in MAPS and not {*maze} & {GOAL, "\n"}:
        raise ValueError(f"maze is {maze!r}: expected rows of cells, or a name; {nearest(maze, MAPS)}")
    rows = MAPS.get(maze, maze).strip().splitlines()
    if odd := {*"".join(rows)} - {WALL, FREE, START, GOAL}:
        raise ValueError(f"maze: {min(odd)!r} is no cell: expected '#', '.', 'S' and 'G'")
    if (
        len({len(row) for row in rows}) != 1
        or sum(row.count(GOAL) for row in rows) != 1
    ):
        raise ValueError("maze: expected rows of one length, with one goal 'G' among them")
    return np.array([[*row] for row in reversed(rows)])


def distances(free: Array, goal: tuple[int, int]) -> Array:
    """Returns [H, W] steps between cells that share a side, from each free cell [H, W] to the goal; inf if
    unreachable."""
    out = np.full(free.shape, np.inf)
    out[goal] = 0.0
    queue = deque([goal])
    while queue:
        cell = queue.popleft()
        for beside in _neighbours(*cell, free):
            if np.isinf(out[beside]):
                out[beside] = out[cell] + 1
                queue.append(beside)
    return out


def _neighbours(row: int, column: int, free: Array) -> list[tuple[int, int]]:
    """Returns the free cells that share a side with this one."""
    beside = [(row, column + 1), (row + 1, column), (row, column - 1), (row - 1, column)]
    return [(r, c) for r, c in beside if 0 <= r < free.shape[0] and 0 <= c < free.shape[1] and free[r, c]]

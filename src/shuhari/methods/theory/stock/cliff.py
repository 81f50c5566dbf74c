"""A walk along a cliff in gusts of wind, in tables: the short way is risky, the long way costs more steps.

After the cliff walk of Sutton and Barto, "Reinforcement Learning: An Introduction" (2018), example 6.6, with gusts
and a time limit. Axes: `P` cells, row by row from the top, `A` = 4 moves, 2 outcomes: without a gust and with one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.bounds import Bounds, Length, Positive, Share, check
from shuhari.data import Array
from shuhari.kernel.registry import register

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left


class Outcomes(NamedTuple):
    """What a move may lead to: `chance` [P, A, 2], the next `place` [P, A, 2], the `reward` [P, A, 2] and whether the
    episode is `over` [P, A, 2]; the first place, the number of steps, and the observations `seen` [T + 1, P, D]."""

    chance: Array
    place: Array
    reward: Array
    over: Array
    first: int
    horizon: int
    seen: Array


@register("world", "cliff")
@dataclass(eq=False)
class Cliff(gymnasium.Env[Any, Any]):
    """A walk along a cliff in gusts of wind, from the lower left corner to the lower right one, with exact tables.

    Each step costs 1. A gust pushes the walker one cell further down. The cells between the corners are the cliff: a
    fall costs `fall` and leads back to the start, and the episode goes on. It ends at the goal, or after `horizon`
    steps. Observation: the cell, one-hot, and the share of the steps that have passed. `table` has all outcomes.
    """

    rows: Annotated[int, Bounds(2, 20)] = 4
    """Number of rows of cells; the lowest has the cliff."""
    columns: Annotated[int, Bounds(3, 40)] = 6
    """Number of columns, at least 3."""
    wind: Share = 0.05
    """Probability of a gust at each step."""
    fall: Positive = 3.0
    """Cost of a fall, in steps."""
    horizon: Length = 24
    """Number of steps after which an episode ends."""

    def __post_init__(self) -> None:
        check(self)
        places = self.rows * self.columns
        self.first, self.goal = places - self.columns, places - 1
        there, reward = np.zeros((places, 4, 2), int), np.full((places, 4, 2), -1.0)
        for place, a, gust in np.ndindex(places, 4, 2):
            row, column = place // self.columns + MOVES[a][0], place % self.columns + MOVES[a][1]
            row, column = min(max(row, 0), self.rows - 1) + gust, min(max(column, 0), self.columns - 1)
            row = min(row, self.rows - 1)
            fell = row == self.rows - 1 and 0 < column < self.columns - 1
            there[place, a, gust] = self.first if fell else row * self.columns + column
            reward[place, a, gust] -= self.fall * fell
        chance = np.broadcast_to(np.array([1 - self.wind, self.wind]), there.shape)
        steps = np.arange(self.horizon + 1) / self.horizon
        seen = np.zeros((self.horizon + 1, places, places + 1), np.float32)
        seen[:, :, :places], seen[:, :, places] = np.eye(places), steps[:, None]
        self.table = Outcomes(chance, there, reward, there == self.goal, self.first, self.horizon, seen)
        bound = np.ones(places + 1, np.float32)
        self.observation_space, self.action_space = spaces.Box(0 * bound, bound), spaces.Discrete(4)
        self.place = self.at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.at = self.first, 0
        return self.table.seen[0, self.place].copy(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        at = self.place, int(action), int(self.np_random.random() < self.wind)
        self.place, self.at = int(self.table.place[at]), self.at + 1
        over = bool(self.table.over[at]) or self.at >= self.horizon
        return self.table.seen[self.at, self.place].copy(), float(self.table.reward[at]), over, False, {}

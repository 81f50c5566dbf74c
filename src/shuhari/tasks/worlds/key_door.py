"""Two rooms, a key and a door: a sparse reward far away, and messages on the way.

Axes: `C` cells, numbered row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.bounds import Length, Share, check
from shuhari.data import Array
from shuhari.kernel.registry import register
from shuhari.tasks.lanes import Stepped

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left
MESSAGES = (  # the message of each number in `info["message"]`; 0 is none
    "",
    "You bump into something.",
    "You find a key and take it.",
    "The door is locked.",
    "You unlock the door.",
    "You reach the goal.",
    "Water drips from the ceiling.",
    "A lamp burns on the wall.",
    "There is a rug on the floor.",
)
BUMP, KEY, LOCKED, UNLOCK, GOAL, FIRST = 1, 2, 3, 4, 5, 6  # FIRST: of the messages of cells a, b and c
CELLS = "S.#KDGabc"


@register("world", "key_door")
@dataclass(eq=False)
class KeyDoor(gymnasium.Env[Any, Any]):
    """A walk to a key, with it through a door, and to a goal, which pays 1 and ends the episode; nothing else pays.

    Actions: up, right, down, left. Observation: phase * C + cell, where the phase is 0 without the key, 1 with it, and
    2 once the door is open. `info` has `message`, the number of the step's message (`MESSAGES`), 0 for none. Raises
    ValueError for a map without exactly one of each of S, K, D and G, or with other cells.
    """

    cells: tuple[str, ...] = ("S..a..", "..b..c", ".....K", "##D###", "a....b", "..c..G")
    """Rows of the map, all of one length: `S` start, `K` key, `D` door, `G` goal, `#` wall, `.` free, and `a`, `b` and
    `c`, free cells with a message about the place."""
    limit: Length = 60
    """Number of steps after which an episode is truncated."""
    slip: Share = 0.1
    """Probability that a uniformly random move is made in place of the chosen one."""
    moves: ClassVar = "place", "phase", "at"

    def __post_init__(self) -> None:
        check(self)
        self.cells = tuple(self.cells)
        text = "".join(self.cells)
        if not text or len({len(row) for row in self.cells}) > 1:
            raise ValueError(f"key_door: cells are {self.cells}: expected rows of one length, at least 1")
        if unknown := set(text) - set(CELLS):
            raise ValueError(f"key_door: unknown cell {min(unknown)!r}: expected one of {' '.join(CELLS)}")
        for need in "SKDG":
            if text.count(need) != 1:
                raise ValueError(f"key_door: cells have {need!r} {text.count(need)} times: expected once")
        self.observation_space, self.action_space = spaces.Discrete(3 * len(text)), spaces.Discrete(len(MOVES))
        self._next, self._message, self._phase, self.start = *self._tables(text), text.index("S")
        self._goal, self._size = text.index("G"), len(text)
        self.place, self.phase, self.at = self.start, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.phase, self.at = self.start, 0, 0
        return self.place, {"message": 0}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        u = float(self.np_random.random())
        taken = min(int(u / self.slip * len(MOVES)), len(MOVES) - 1) if u < self.slip else int(action)
        where = self.phase, self.place, taken
        self.phase, self.place, self.at = int(self._phase[where]), int(self._next[where]), self.at + 1
        won = self.place == self._goal
        seen = self.phase * self._size + self.place
        return seen, float(won), won, not won and self.at >= self.limit, {"message": int(self._message[where])}

    def step_lanes(self, lanes: Any, actions: Array) -> Stepped:
        u = lanes.draw("random")
        other = np.minimum((u / max(self.slip, 1e-12) * len(MOVES)).astype(int), len(MOVES) - 1)
        where = lanes.phase, lanes.place, np.where(u < self.slip, other, actions)
        lanes.phase, lanes.place, lanes.at = self._phase[where], self._next[where], lanes.at + 1
        won = lanes.place == self._goal
        seen = lanes.phase * self._size + lanes.place
        return seen, won.astype(float), won, ~won & (lanes.at >= self.limit), {"message": self._message[where]}

    def _tables(self, text: str) -> tuple[Array, Array, Array]:
        """Returns the next cell, the message and the next phase, [3, C, 4] each, by phase, cell and move."""
        rows, columns = len(self.cells), len(self.cells[0])
        nexts, said, phases = (np.zeros((3, len(text), len(MOVES)), int) for _ in range(3))
        for phase, cell, move in np.ndindex(nexts.shape):
            row, column = cell // columns + MOVES[move][0], cell % columns + MOVES[move][1]
            to = row * columns + column if 0 <= row < rows and 0 <= column < columns else cell
            kind, then, message = text[to], phase, 0
            if to == cell or kind == "#":
                to, message = cell, BUMP
            elif kind == "D" and phase == 0:
                to, message = cell, LOCKED
            elif kind == "D" and phase == 1:
                then, message = 2, UNLOCK
            elif kind == "K" and phase == 0:
                then, message = 1, KEY
            elif kind == "G":
                message = GOAL
            elif kind in "abc":
                message = FIRST + "abc".index(kind)
            nexts[phase, cell, move], said[phase, cell, move], phases[phase, cell, move] = to, message, then
        return nexts, said, phases

"""A gridworld with exactly known dynamics: an environment, and its tables for exact solutions.

Axes: `S` cells, numbered row by row; `A` the four moves up, right, down, left. A move into a wall or over the edge
stays in place. With `slip` a move goes to one of its two sides, each with probability slip / 2. Slips come from a
counter keyed by (seed, problem, step), so an episode is a function of its problem and its actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shuhari.bounds import Length, Seed, Share, check
from shuhari.data import Array, Payload, Problem, Status, Step
from shuhari.kernel.registry import register
from shuhari.tasks.source import Generated, Stream, check_split

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left
_SIDE = 24  # pixels of a cell
_COLOURS: Mapping[str, Any] = {"#": 70, "H": (200, 90, 80), "G": (90, 170, 90)}  # of an image; other cells are white
_CELLS = {"S": "start", "G": "goal", "H": "hole", "#": "wall", ".": "free"}


@register("task", "gridworld")
@dataclass
class Gridworld:
    """A small gridworld with known dynamics: walk from S to G past walls # and holes H by the moves up, right, down and
    left.

    Observations are cell numbers, row by row; `P` and `R` are its tables, for exact solutions. The reward is `task`,
    and `score` is 1 for an episode that ends in a goal. Raises ValueError for an invalid map.
    """

    cells: tuple[str, ...] = ("S..#", ".#..", "...H", "#..G")
    """Rows of the map, all of one length: `S` start (one of several is drawn), `G` goal, `H` hole, `#` wall, `.`
    free."""
    goal: float = 1.0
    """Reward for entering a goal, which ends the episode."""
    hole: float = 0.0
    """Reward for entering a hole, which ends the episode; set it below 0 as a penalty."""
    living: float = 0.0
    """Reward added to every move; set it below 0 to favour short paths."""
    slip: Share = 0.0
    """Probability that a move goes to one of its two sides instead, half to each; 0 is deterministic."""
    limit: Length = 50
    """Number of moves after which an episode is truncated."""
    test_size: Length = 256
    """Number of episodes in the test split."""
    seed: Seed = 0
    """Seed of the starts and slips of episodes. In a recipe it is the run's seed unless set."""
    stamps = ("reward/task", "reward/score")

    def __post_init__(self) -> None:
        check(self)
        self.cells = tuple(self.cells)
        if not self.cells or len({len(row) for row in self.cells}) > 1 or not self.cells[0]:
            raise ValueError(f"gridworld: cells are {self.cells}: expected rows of one length, at least 1")
        unknown = set("".join(self.cells)) - set(_CELLS)
        if unknown:
            raise ValueError(f"gridworld: unknown cell {min(unknown)!r}: expected one of {' '.join(_CELLS)}")
        for need in "SG":
            if need not in "".join(self.cells):
                raise ValueError(f"gridworld: cells {self.cells} have no {need!r} ({_CELLS[need]})")

    def problems(self, split: str) -> Generated:
        """Returns episodes of the same world: endless for `train`, `test_size` of them for `test`."""
        count = self.test_size if check_split(split) == "test" else None
        return Generated(lambda i: Problem("gridworld", f"{split}/{i}", None), count)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0} if the episode's last context is a goal, else 0.0."""
        last = int(np.asarray(steps[-1].context).item())
        return {"score": float(self.kinds[last] == "G")}

    def filmed(self) -> Gridworld:
        """Returns itself: a walk can always draw itself."""
        return self

    def environment(self, problem: Problem) -> Walk:
        return Walk(self)

    def spaces(self) -> tuple[Any, Any]:
        from gymnasium.spaces import Discrete

        return Discrete(len(self.kinds)), Discrete(len(MOVES))

    @cached_property
    def kinds(self) -> str:
        """[S] the kind of each cell, as a letter."""
        return "".join(self.cells)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The cells where an episode may start, all equally likely."""
        return tuple(i for i, kind in enumerate(self.kinds) if kind == "S")

    @cached_property
    def terminal(self) -> Array:
        """[S] bool: cells that end an episode."""
        return np.array([kind in "GH" for kind in self.kinds])

    @cached_property
    def P(self) -> Array:
        """[S, A, S] transition probabilities; terminal cells and walls stay where they are."""
        p = np.zeros((len(self.kinds), len(MOVES), len(self.kinds)))
        for s, a in np.ndindex(p.shape[:2]):
            if self.terminal[s] or self.kinds[s] == "#":
                p[s, a, s] = 1.0
                continue
            for chance, to in self.outcomes(int(s), int(a)):
                p[s, a, to] += chance
        return p

    @cached_property
    def R(self) -> Array:
        """[S, A] expected reward of a move; 0 in terminal cells and walls."""
        live = ~self.terminal & np.array([kind != "#" for kind in self.kinds])
        return np.asarray((self.P @ [self.reward(s) for s in range(len(self.kinds))]) * live[:, None])

    def reward(self, to: int) -> float:
        """Returns the reward of a move that ends in cell `to`."""
        return self.living + {"G": self.goal, "H": self.hole}.get(self.kinds[to], 0.0)

    def outcomes(self, state: int, action: int) -> list[tuple[float, int]]:
        """Returns (probability, cell) of the outcomes of a move: ahead, or to either side."""
        sides = ((action, 1 - self.slip), ((action + 1) % 4, self.slip / 2), ((action - 1) % 4, self.slip / 2))
        return [(chance, self._land(state, a)) for a, chance in sides if chance > 0]

    def _land(self, state: int, move: int) -> int:
        rows, columns = len(self.cells), len(self.cells[0])
        row, column = state // columns + MOVES[move][0], state % columns + MOVES[move][1]
        inside = 0 <= row < rows and 0 <= column < columns
        return row * columns + column if inside and self.cells[row][column] != "#" else state


class Walk:
    """One episode in a gridworld; observations are cell numbers."""

    def __init__(self, world: Gridworld) -> None:
        self.world, self.key, self.state, self.t = world, "", world.starts[0], 0
        self.ended = True

    def reset(self, problem: Problem) -> Payload:
        """Starts the episode in the cell drawn for the problem, or from its `start` snapshot."""
        if problem.start is not None:
            return self.restore(problem.start)
        starts = self.world.starts
        self.key, self.t, self.ended = problem.id, 0, False
        self.state = starts[Stream("gridworld", self.world.seed, self.key, "start").below(len(starts))]
        return self.state

    def step(self, action: Any) -> tuple[Payload, dict[str, float], Status | None]:
        """Returns (cell, {"task": reward}, the status if the episode ended). Raises RuntimeError after the end."""
        world, move = self.world, int(np.asarray(action).item())
        if self.ended:
            raise RuntimeError("the episode has ended: reset before the next step")
        if not 0 <= move < len(MOVES):
            raise ValueError(f"gridworld: the action is {move}: expected 0 (up), 1 (right), 2 (down) or 3 (left)")
        u = Stream("gridworld", world.seed, self.key, "slip", self.t).uniform() if world.slip else 0.0
        self.state, self.t = _pick(world.outcomes(self.state, move), u), self.t + 1
        over, late = bool(world.terminal[self.state]), self.t >= world.limit
        self.ended = over or late
        status = Status.FINISHED if over else Status.TRUNCATED if late else None
        return self.state, {"task": world.reward(self.state)}, status

    def draw(self) -> Array:
        """Returns [H, W, 3] uint8: the cells, with their lines, and a blue square for the walker."""
        rows, columns = len(self.world.cells), len(self.world.cells[0])
        out = np.full((rows * _SIDE, columns * _SIDE, 3), 255, np.uint8)
        for i, kind in enumerate(self.world.kinds):
            r, c = (x * _SIDE for x in divmod(i, columns))
            out[r : r + _SIDE, c : c + _SIDE] = _COLOURS.get(kind, 255)
        out[::_SIDE] = out[:, ::_SIDE] = 190
        r, c = (x * _SIDE + _SIDE // 4 for x in divmod(self.state, columns))
        out[r : r + _SIDE // 2, c : c + _SIDE // 2] = (60, 100, 190)
        return out

    def snapshot(self) -> Payload:
        return {"key": self.key, "state": self.state, "t": self.t, "ended": self.ended}

    def restore(self, snapshot: Payload) -> Payload:
        """Returns to a snapshot; returns the observation there."""
        s: Any = snapshot
        self.key, self.state, self.t, self.ended = str(s["key"]), int(s["state"]), int(s["t"]), bool(s["ended"])
        return self.state


def _pick(outcomes: list[tuple[float, int]], u: float) -> int:
    """Chooses an outcome by its probability, with u in (0, 1)."""
    for chance, to in outcomes:
        u -= chance
        if u < 0:
            return to
    return outcomes[-1][1]  # rounding

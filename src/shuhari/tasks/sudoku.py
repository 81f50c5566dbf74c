"""Sudoku: a grid with empty cells and one way to fill them: `1..4.4.12...43.2=` -> `1234342121434312`.

A grid has rows, columns and boxes, each with every digit once. A prompt is the grid row by row, `.` for an empty cell;
the answer is the whole filled grid. Grids are drawn by a search, and emptied cell by cell while the solution stays
unique. Cells cannot be deduced in reading order, so it matters whether a policy has to write from left to right. As in
d1 (Zhao et al. 2025, "d1: Scaling Reasoning in Diffusion Large Language Models via Reinforcement Learning", arXiv
2504.12216), whose reward is the share of empty cells that are right. Left out: grids that are equal up to renaming of
digits count as different, so all of the 288 grids of four digits are in both splits; only the empty cells are new.

Axes: `S` = box^2 digits, the side of a grid; cells count from 0 to S^2 - 1, row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, Literal

from shuhari.bounds import Length, ProperShare, Seed, Share, check
from shuhari.data import Problem, Step
from shuhari.kernel.registry import register
from shuhari.ports.answers import Answers
from shuhari.tasks.source import TRIES, Generated, Listed, Stream, answer_text, check_split, draw_distinct, draw_item

EMPTY_CELL = "."
MOST = {2: 12, 3: 50}  # empty cells: fewer than 4 of 16 do not fix a grid, and beyond 50 of 81 the search is slow


@register("task", "sudoku")
@dataclass
class Sudoku:
    """Sudoku with one way to fill it in: a 4 x 4 or 9 x 9 grid row by row, `1..4.4.12...43.2=` -> `1234342121434312`.

    `score` is 1 for exactly the right answer; `partial`, the share of empty cells that are right in an answer that is
    not too long, is summed only if `[reward.weights]` names it. Training never uses test prompts. A problem's task is
    its number of empty cells (`empty6`), so numbers are also reported for each, as `mean@empty6`. `info`: `level`, that
    number. Raises ValueError for too many empty cells.
    """

    box: Literal[2, 3] = 2
    """Side of a box: 2 for grids of 4 x 4 cells, 3 for 9 x 9."""
    empty: tuple[Length, ...] = (6,)
    """Number of empty cells; several numbers are levels, trained on equally often. At most 12 with box 2, 50 with box
    3."""
    whole: bool = True
    """Expect the whole grid as the answer; false expects only the empty cells, row by row."""
    slip: Share = 0.0
    """Probability that a demonstration has a wrong digit in an empty cell; 0 demonstrates right answers."""
    test_fraction: ProperShare = 0.25
    """Share of the prompts that is held out for testing, by a hash of the prompt; training never draws them."""
    test_size: Length = 256
    """Number of problems in the test split, spread evenly over the levels; fewer if there are no more."""
    seed: Seed = 0
    """Seed of the drawn problems and demonstrations; which problems are held out does not depend on it. In a recipe it
    is the run's seed unless set."""
    stamps = ("reward/score", "reward/partial")

    def __post_init__(self) -> None:
        check(self)
        if not self.empty or len(set(self.empty)) < len(self.empty) or max(self.empty) > MOST[self.box]:
            expected = f"numbers that differ, of 1 to {MOST[self.box]} cells where box is {self.box}"
            raise ValueError(f"sudoku: empty is {self.empty}: expected {expected}")

    @property
    def alphabet(self) -> str:
        """The characters of prompts and answers."""
        return f"{''.join(map(str, range(1, self.box**2 + 1)))}{EMPTY_CELL}="

    def problems(self, split: str) -> Generated | Listed:
        return self._test if check_split(split) == "test" else Generated(self._train)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0 for the right answer, else 0.0, "partial": share of empty cells that are right}."""
        text, right = answer_text(steps), str(problem.answer)
        told = [i for i in range(len(right)) if not self.whole or str(problem.prompt)[i] == EMPTY_CELL]
        hits = sum(text[i : i + 1] == right[i] for i in told) if len(text) <= len(right) else 0
        return {"score": float(text == right), "partial": hits / len(told)}

    def answers(self, problem: Problem) -> Answers:
        """Returns the right answer."""
        return Answers((str(problem.answer),), (1.0,))

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    # ---------------------------------------------------------------- problems

    @cached_property
    def _test(self) -> Listed:
        """The levels in turn."""
        size = max(self.test_size // len(self.empty), 1)
        found = [draw_distinct(partial(self._item, "test", empty), size).problems for empty in self.empty]
        return Listed(
            [
                p
                for row in zip(*found, strict=False)
                for p in row
            ]
        )

    def _train(self, index: int) -> Problem:
        level = Stream("sudoku level", self.seed, index).below(len(self.empty))
        return self._item("train", self.empty[level], index)[1]

    def _item(self, split: str, empty: int, index: int) -> tuple[str, Problem]:
        """Returns (prompt, problem) number `index` of a level."""
        stream = Stream("sudoku", self.seed, split, empty, index)

        def draw() -> tuple[str, list[int]]:
            puzzle, grid = draw_puzzle(self.box, empty, stream)
            return "".join(str(x) if x else EMPTY_CELL for x in puzzle) + "=", grid

        prompt, grid = draw_item(split, self.test_fraction, draw, "sudoku")
        shown = [x if given != EMPTY_CELL else self._slip(x, stream) for x, given in zip(grid, prompt, strict=False)]
        answer, solution = ("".join(str(x) for x, given in zip(cells, prompt, strict=False)
                                    if self.whole or given == EMPTY_CELL) for cells in (grid, shown))  # fmt: skip
        return prompt, Problem(f"empty{empty}", prompt, prompt, answer, solution, {"level": empty})

    def _slip(self, digit: int, stream: Stream) -> int:
        if stream.uniform() >= self.slip:
            return digit
        size = self.box**2
        return (digit + stream.below(size - 1)) % size + 1


def draw_puzzle(box: int, empty: int, stream: Stream) -> tuple[list[int], list[int]]:
    """Returns (a grid with `empty` cells set to 0, its only solution): [S^2] digits each. Raises ValueError if none is
    found."""
    for _ in range(TRIES):
        grid = next(complete([0] * box**4, box, stream))
        cells, left = [*grid], empty
        for cell in sorted(range(box**4), key=lambda _: stream.bits()):
            if left and not _is_needed(cells, cell, box):
                cells[cell], left = 0, left - 1
        if not left:
            return cells, grid
    raise ValueError(f"sudoku: none of {TRIES} grids has one way to fill in {empty} empty cells: expected fewer")


def complete(cells: Sequence[int], box: int, stream: Stream | None = None) -> Iterator[list[int]]:
    """Yields all ways to fill in the 0s of a grid [S^2], each as a grid, trying digits in rising or in random order.
    The next cell is one with the fewest possible digits."""
    filled, used = [*cells], [0] * (3 * box**2)  # for each unit the bits of its digits
    for cell, digit in enumerate(cells):
        for unit in _units(box)[cell] if digit else ():
            if used[unit] >> digit & 1:
                return
            used[unit] |= 1 << digit
    yield from _fill(filled, used, [i for i, x in enumerate(cells) if not x], box, stream)


def _fill(cells: list[int], used: list[int], empty: list[int], box: int, stream: Stream | None) -> Iterator[list[int]]:
    if not empty:
        yield [*cells]
        return
    units, every = _units(box), (2 << box**2) - 2
    best, fewest, free = 0, box**2 + 1, 0
    for i in empty:
        a, b, c = units[i]
        fits = every & ~(used[a] | used[b] | used[c])
        if (n := fits.bit_count()) < fewest:
            best, fewest, free = i, n, fits
            if n < 2:
                break
    digits = [x for x in range(1, box**2 + 1) if free >> x & 1]
    rest = [i for i in empty if i != best]
    for x in digits if stream is None or fewest < 2 else sorted(digits, key=lambda _: stream.bits()):
        cells[best] = x
        for unit in units[best]:
            used[unit] ^= 1 << x
        yield from _fill(cells, used, rest, box, stream)
        for unit in units[best]:
            used[unit] ^= 1 << x
    cells[best] = 0


def _is_needed(cells: Sequence[int], cell: int, box: int) -> bool:
    """Whether a grid with a unique solution would have more if this cell were empty."""
    others = (x for x in range(1, box**2 + 1) if x != cells[cell])
    return any(next(complete([*cells[:cell], x, *cells[cell + 1 :]], box), None) for x in others)


@cache
def _units(box: int) -> tuple[tuple[int, int, int], ...]:
    """The numbers of each cell's row, column and box."""
    size = box**2
    rows = [divmod(i, size) for i in range(size**2)]
    return tuple((r, size + c, 2 * size + r // box * box + c // box) for r, c in rows)

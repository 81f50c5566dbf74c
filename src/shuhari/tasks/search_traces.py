"""Puzzles whose demonstrations are searches in writing, with a given number of backtracks, or the direct path alone.

A demonstration is a trace, `;` and the answer. Lines of a trace are separated by `|`. A line is a step, or `<` and the
state that is restored: a backtrack. Countdown with the numbers 2, 3, 7 and the target 13:

    direct          2*3=6|6+7=13;(2*3)+7
    one backtrack   2*7=14|<2,3,7|2*3=6|6+7=13;(2*3)+7

Only the answer is graded, by the task of the game. The number of backtracks is that of "How Much Backtracking is
Enough?" (Cai et al. 2025, arXiv 2505.24273), the depth-first search that of "To Backtrack or Not to Backtrack" (Qin et
al. 2025, arXiv 2504.07052). Left out: breadth-first search, and searches of several answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Annotated, Any, Literal

from shuhari.bounds import Bounds, Count, Length, ProperShare, Seed, check
from shuhari.data import Problem, Step
from shuhari.kernel.registry import register
from shuhari.tasks.countdown import Countdown
from shuhari.tasks.source import Splits, Stream, answer_text, last_decision
from shuhari.tasks.sudoku import EMPTY_CELL, MOST, Sudoku

BACK, END, LINE = "<", ";", "|"
CELLS = "abcdefghijklmnop"  # of a grid of 4 x 4, row by row
TRIES = 100  # draws of a branch of one length
State = tuple[Any, ...]  # numbers as (value, expression), or filled cells as (cell, digit)
Move = tuple[str, State]  # a line, and the state after it


@register("task", "search_traces")
@dataclass
class SearchTraces:
    """Puzzles with demonstrated searches: `2,3,7>13=` -> `2*7=14|<2,3,7|2*3=6|6+7=13;(2*3)+7`, one backtrack.

    Only the text after the last `;` is graded: an expression for Countdown, the empty cells row by row for Sudoku. The
    problems and their split are those of `countdown` and `sudoku`. The solution that is shown is the first that a
    depth-first search finds: it takes the move that comes closest to the target, or the cell with the fewest digits.
    `info`: `path`, the lines of the direct solution. Raises ValueError for settings that do not fit together.
    """

    game: Literal["countdown", "sudoku"] = "countdown"
    """Puzzle: `countdown` (an expression that makes the target) or `sudoku` (a grid of 4 x 4)."""
    numbers: Annotated[int, Bounds(3, 4)] = 3
    """Number of given numbers of a Countdown puzzle."""
    high: Annotated[int, Bounds(1, 99)] = 9
    """Largest given number of a Countdown puzzle."""
    largest: Length = 60
    """Largest target of a Countdown puzzle."""
    operators: str = "+-*"
    """Operators of Countdown puzzles, some of `+-*/`."""
    empty: Annotated[int, Bounds(1, 12)] = 5
    """Number of empty cells of a Sudoku puzzle."""
    backtracks: Count = 0
    """Number of wrong branches that a demonstration tries and takes back; 0 demonstrates the direct path."""
    search: bool = False
    """Demonstrate the whole depth-first search, with the backtracks that it needs, in the place of `backtracks` wrong
    branches at random."""
    control: Literal["", "shuffled", "wrong"] = ""
    """Control of what matters in a demonstration: `shuffled` permutes the lines of the trace before the answer, and
    `wrong` ends in a path and an answer that do not solve the puzzle, with as many backtracks."""
    longest: Count = 0
    """Largest number of characters of a demonstration; a longer one is cut there, before its answer; 0 cuts none."""
    test_fraction: ProperShare = 1 / 16
    """Share of all possible problems that is held out for testing, by a hash of their content; training never draws
    them."""
    test_size: Length = 256
    """Number of problems in the test split, no two alike; fewer if the task has no more."""
    seed: Seed = 0
    """Seed of the drawn problems and demonstrations; which problems are held out does not depend on it. In a recipe it
    is the run's seed unless set."""
    stamps = ("reward/score",)

    def __post_init__(self) -> None:
        check(self)
        if self.search and (self.backtracks or self.control == "wrong"):
            raise ValueError(f"search_traces: search with backtracks {self.backtracks} and control {self.control!r}: "
                             "expected 0 and no 'wrong', as a search makes its own and ends in a solution")  # fmt: skip
        _ = self.of  # checks the settings of the game

    @property
    def alphabet(self) -> str:
        """The characters of prompts and answers."""
        more = CELLS if self.game == "sudoku" else ",()"
        return "".join(sorted({*self.of.alphabet, *more, BACK, END, LINE}))

    @cached_property
    def of(self) -> Countdown | Sudoku:
        """The task whose problems these are."""
        shared: dict[str, Any] = {"test_fraction": self.test_fraction, "test_size": self.test_size, "seed": self.seed}
        if self.game == "sudoku":
            return Sudoku(2, (min(self.empty, MOST[2]),), whole=False, **shared)
        return Countdown(self.numbers, 1, self.high, self.largest, self.operators, **shared)

    @cached_property
    def problems(self) -> Splits:
        def make(split: str, index: int) -> tuple[str, Problem]:
            source = self.of.problems(split)
            size = source.size()
            problem = source[index if size is None else index % size]
            board, stream = self.set_up(problem), Stream("search_traces", self.seed, split, index)
            path = find_path(board)
            shown, answer = self._demonstrate(board, path, stream), f"{END}{board.answer(path[-1][1])}"
            info = {**problem.info, "path": [line for line, _ in path]}
            return problem.id, replace(problem, task="search_traces", answer=answer, solution=shown, info=info)

        return Splits(make, self.test_size)

    def set_up(self, problem: Problem) -> Numbers | Grid:
        """Return the board of a problem."""
        if self.game == "sudoku":
            return Grid(str(problem.prompt).removesuffix("="), str(problem.answer))
        return Numbers(tuple(problem.info["numbers"]), problem.info["target"], self.operators)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0} if the text after the last `;` solves the puzzle, else 0.0."""
        _, marked, answer = answer_text(steps).rpartition(END)
        if not marked:
            return {"score": 0.0}
        last = last_decision(steps)
        told = replace(last, info={**last.info, "text": answer})
        inner = replace(problem, answer=str(problem.answer).removeprefix(END))
        return {"score": self.of.grade(inner, [told])["score"]}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    def _demonstrate(self, board: Numbers | Grid, path: list[Move], stream: Stream) -> str:
        path = draw_failing(board, stream) if self.control == "wrong" else path
        lines = list_search(board) if self.search else plant(board, path, self.backtracks, stream)
        if self.control == "shuffled":
            lines = sorted(lines, key=lambda _: stream.bits())
        text = f"{LINE.join(lines)}{END}{board.answer(path[-1][1])}"
        return text[: self.longest] if self.longest else text


# ------------------------------------------------------------------------------------------------ boards


@dataclass(frozen=True)
class Numbers:
    """Countdown: a move joins two numbers into one of at least 0; solved if the target alone is left."""

    given: tuple[int, ...]
    target: int
    operators: str

    @property
    def start(self) -> State:
        return tuple((n, str(n)) for n in self.given)

    def show(self, state: State) -> str:
        """Return the numbers that are left, in order."""
        return ",".join(str(n) for n, _ in state)

    def list_moves(self, state: State) -> list[Move]:
        """Return the moves, first the one with a number that is closest to the target."""
        out: dict[str, State] = {}
        for i, j in combinations(range(len(state)), 2):
            rest = tuple(state[k] for k in range(len(state)) if k not in (i, j))
            for op in self.operators:
                (a, x), (b, y) = (state[i], state[j]) if op in "+*" or state[i][0] >= state[j][0] else (
                    state[j], state[i])  # fmt: skip
                c = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b and not a % b else -1}[op]
                if c >= 0:
                    out.setdefault(f"{a}{op}{b}={c}", (*rest, (c, f"{_enclose(x)}{op}{_enclose(y)}")))
        return sorted(out.items(), key=lambda move: min(abs(n - self.target) for n, _ in move[1]))

    list_tries = list_moves

    def is_done(self, state: State) -> bool:
        """Whether no move is left."""
        return len(state) == 1

    def is_solvable(self, state: State) -> bool:
        """Whether some moves from here solve the puzzle."""
        if self.is_done(state):
            return bool(state[0][0] == self.target)
        return any(self.is_solvable(after) for _, after in self.list_moves(state))

    def answer(self, state: State) -> str:
        """Return the expression of the last number."""
        return str(state[-1][1])


@dataclass(frozen=True)
class Grid:
    """Sudoku of 4 x 4: a move fills the empty cell that has the fewest digits, the first of several."""

    cells: str
    solution: str
    start: State = ()

    def show(self, state: State) -> str:
        """Return the cells that were filled, in order."""
        return "".join(f"{CELLS[cell]}{digit}" for cell, digit in state)

    def list_moves(self, state: State) -> list[Move]:
        """Return the moves that break no rule, in rising order of digits."""
        cell, digits = self._choose(state)
        return [self._fill(state, cell, digit) for digit in digits]

    def list_tries(self, state: State) -> list[Move]:
        """Return the same, or all four digits of that cell if one of them is the only one that breaks no rule."""
        cell, digits = self._choose(state)
        return [self._fill(state, cell, digit) for digit in (digits if len(digits) > 1 else "1234")]

    def is_done(self, state: State) -> bool:
        """Whether no cell is empty, or one has no digit left."""
        return len(state) == len(self.solution) or not self._choose(state)[1]

    def is_solvable(self, state: State) -> bool:
        """Whether every digit is that of the solution, the only one."""
        right = self._right()
        return all(right[cell] == digit for cell, digit in state)

    def answer(self, state: State) -> str:
        """Return the digits of the empty cells, row by row; those that were not filled are the solution's."""
        return "".join({**self._right(), **dict(state)}.values())

    def _right(self) -> dict[int, str]:
        empty = [i for i, digit in enumerate(self.cells) if digit == EMPTY_CELL]
        return dict(zip(empty, self.solution, strict=True))

    def _fill(self, state: State, cell: int, digit: str) -> Move:
        return f"{CELLS[cell]}{digit}", (*state, (cell, digit))

    def _choose(self, state: State) -> tuple[int, str]:
        grid = list(self.cells)
        for cell, digit in state:
            grid[cell] = digit
        fits = {}
        for cell in (i for i, digit in enumerate(grid) if digit == EMPTY_CELL):
            row, column = divmod(cell, 4)
            seen = {grid[i] for i in range(16) if i // 4 == row or i % 4 == column
                    or (i // 8, i % 4 // 2) == (row // 2, column // 2)}  # fmt: skip
            fits[cell] = "".join(digit for digit in "1234" if digit not in seen)
        best = min(fits, key=lambda cell: (len(fits[cell]), cell))
        return best, fits[best]


def _enclose(text: str) -> str:
    return text if text.isdigit() else f"({text})"


# ------------------------------------------------------------------------------------------------ traces


def find_path(board: Numbers | Grid) -> list[Move]:
    """Return the first solution that a depth-first search finds. Raises ValueError if there is none."""
    path: list[Move] = []
    state = board.start
    if not board.is_solvable(state):
        raise ValueError(f"search_traces: {board} has no solution in whole numbers of at least 0")
    while not board.is_done(state):
        path.append(next(move for move in board.list_moves(state) if board.is_solvable(move[1])))
        state = path[-1][1]
    return path


def list_search(board: Numbers | Grid) -> list[str]:
    """Return the lines of a depth-first search up to its first solution. Before each further move of a state, the
    search backs out to that state."""
    lines: list[str] = []

    def visit(state: State) -> bool:
        """Append the lines from a state; return whether the puzzle is solved."""
        if board.is_done(state):
            return board.is_solvable(state)
        for i, (line, after) in enumerate(board.list_moves(state)):
            lines.extend([f"{BACK}{board.show(state)}"] if i else [])
            lines.append(line)
            if visit(after):
                return True
        return False

    visit(board.start)
    return lines


def plant(board: Numbers | Grid, path: Sequence[Move], backtracks: int, stream: Stream) -> list[str]:
    """Return the lines of a path with that many wrong branches, at random states of it in order. A state all of whose
    moves solve the puzzle gets none."""
    states = [board.start, *(state for _, state in path[:-1])]
    free = [i for i, state in enumerate(states) if can_fail(board, state)]
    places = sorted(free[stream.below(len(free))] for _ in range(backtracks))
    lines = []
    for depth, (line, _) in enumerate(path):
        for _ in range(places.count(depth)):
            lines += [*draw_branch(board, states[depth], stream), f"{BACK}{board.show(states[depth])}"]
        lines.append(line)
    return lines


def can_fail(board: Numbers | Grid, state: State) -> bool:
    """Whether some move from a state leads to one without a solution."""
    return any(not board.is_solvable(after) for _, after in board.list_tries(state))


def draw_branch(board: Numbers | Grid, state: State, stream: Stream) -> list[str]:
    """Return the lines of a random branch that ends in a state without a solution. Raises ValueError if none is
    found."""
    for _ in range(TRIES):
        lines, at = list[str](), state
        while not board.is_done(at) and not (lines and not board.is_solvable(at) and stream.below(2)):
            tries = board.list_tries(at)
            line, at = tries[stream.below(len(tries))]
            lines.append(line)
        if not board.is_solvable(at):
            return lines
    raise ValueError(f"search_traces: none of {TRIES} branches of {board} fails: expected a harder puzzle")


def draw_failing(board: Numbers | Grid, stream: Stream) -> list[Move]:
    """Return a random path to an end that does not solve the puzzle. Raises ValueError if none is found."""
    for _ in range(TRIES):
        path, state = list[Move](), board.start
        while not board.is_done(state):
            tries = board.list_tries(state)
            path.append(tries[stream.below(len(tries))])
            state = path[-1][1]
        if not board.is_solvable(state):
            return path
    raise ValueError(f"search_traces: none of {TRIES} paths of {board} fails: expected a harder puzzle")

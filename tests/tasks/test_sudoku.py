"""Sudoku: puzzles against all grids, counted out without a search; grades against hand-made answers."""

from __future__ import annotations

from collections import Counter
from itertools import permutations, product
from math import sqrt
from typing import Any

import pytest

from shuhari.data import Problem
from shuhari.tasks.source import Stream
from shuhari.tasks.sudoku import Sudoku, complete, draw_puzzle
from spoken import said, score_uniform

PROMPT, RIGHT = "1..4.4.12...43.2=", "1234342121434312"


def is_grid(text: str) -> bool:
    """Whether every row, column and box of 2 x 2 has each of four digits."""
    rows = [text[i : i + 4] for i in range(0, 16, 4)]
    boxes = [rows[r][c : c + 2] + rows[r + 1][c : c + 2] for r in (0, 2) for c in (0, 2)]
    return all(set(unit) == set("1234") for unit in (*map("".join, zip(*rows, strict=True)), *boxes, *rows))


ROWS = [*map("".join, permutations("1234"))]
HALVES = [a + b for a, b in product(ROWS, repeat=2) if set(a[:2] + b[:2]) == set("1234")]  # then the other box is, too
GRIDS = [x for x in map("".join, product(HALVES, repeat=2)) if is_grid(x)]


def fitting(puzzle: str) -> list[str]:
    """All grids that have what a puzzle shows."""
    return [grid for grid in GRIDS if all(x in (".", y) for x, y in zip(puzzle, grid, strict=True))]


def shown(task: Sudoku, n: int) -> list[Problem]:
    train = task.problems("train")
    return [train[i] for i in range(n)]


def near(found: int, n: int, p: float) -> bool:
    """Within four standard deviations of a binomial."""
    return abs(found - n * p) <= 4 * sqrt(n * p * (1 - p)) + 1e-9


def test_there_are_288_grids_and_the_search_finds_them_all() -> None:
    assert len(GRIDS) == 288  # as is known
    assert sorted("".join(map(str, x)) for x in complete([0] * 16, 2)) == sorted(GRIDS)


def test_the_search_fills_in_what_is_left_in_every_way() -> None:
    for puzzle in ("1" + "." * 15, "12..3..........4", "1.....1.........", "11..............", "." * 12 + "4321"):
        cells = [0 if x == "." else int(x) for x in puzzle]
        assert sorted("".join(map(str, x)) for x in complete(cells, 2)) == sorted(fitting(puzzle))
        assert cells == [0 if x == "." else int(x) for x in puzzle]


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("empty", [1, 6, 9, 12])
def test_every_puzzle_has_one_way_to_be_filled_in(split: str, empty: int) -> None:
    source = Sudoku(empty=(empty,)).problems(split)
    for problem in (source[i] for i in range(60)):
        prompt = str(problem.prompt)
        assert len(prompt) == 17 and prompt.count(".") == empty == problem.info["level"] and prompt[-1] == "="
        assert fitting(prompt[:-1]) == [problem.answer] == [problem.solution]


def test_grids_are_drawn_from_all() -> None:
    drawn = Counter(str(p.answer) for p in shown(Sudoku(), 4000))
    assert set(drawn) == set(GRIDS) and max(drawn.values()) < 4 * 4000 / 288


def test_nine_digits() -> None:
    puzzle, grid = draw_puzzle(3, 50, Stream("test"))
    rows = [grid[i : i + 9] for i in range(0, 81, 9)]
    boxes = [[rows[r + i][c + j] for i in range(3) for j in range(3)] for r in (0, 3, 6) for c in (0, 3, 6)]
    assert all(sorted(unit) == [*range(1, 10)] for unit in (*rows, *map(list, zip(*rows, strict=True)), *boxes))
    assert puzzle.count(0) == 50 and all(x in (0, y) for x, y in zip(puzzle, grid, strict=True))
    assert [*complete(puzzle, 3)] == [grid]
    problem = Sudoku(box=3, empty=(30,)).problems("train")[0]
    assert len(str(problem.prompt)) == 82 and set(str(problem.answer)) == set("123456789")


# ------------------------------------------------------------------------------------------------ grades


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        (RIGHT, 8),
        ("1234342121434321", 7),  # two the other way round, one of which was given
        ("1324342121434312", 6),
        ("2234342121434312", 8),  # what was given is another digit: wrong, and every empty cell right
        ("1234", 2),
        ("", 0),
        (RIGHT + "1", 0),
        (RIGHT + " ", 0),
        (" " + RIGHT, 0),
        ("\u0661" * 16, 0),
        ("9" * 5000, 0),
        (PROMPT[:-1], 0),
    ],
)
def test_a_grid_is_graded_cell_by_cell(text: str, hits: int) -> None:
    assert fitting(PROMPT[:-1]) == [RIGHT] and PROMPT.count(".") == 8
    grades = Sudoku().grade(Problem("empty8", PROMPT, PROMPT, RIGHT), said(text))
    assert grades == {"score": float(text == RIGHT), "partial": hits / 8}


@pytest.mark.parametrize(
    ("text", "hits"), [("23321431", 8), ("23321413", 6), ("2332143", 7), ("233214311", 0), (RIGHT, 0), ("", 0)]
)
def test_empty_cells_alone_are_graded_in_order(text: str, hits: int) -> None:
    told = "".join(x for x, given in zip(RIGHT, PROMPT, strict=False) if given == ".")
    assert told == "23321431"
    grades = Sudoku(whole=False).grade(Problem("empty8", PROMPT, PROMPT, told), said(text))
    assert grades == {"score": float(text == told), "partial": hits / 8}


@pytest.mark.parametrize("whole", [True, False])
def test_who_knows_the_answer_is_right(whole: bool) -> None:
    task = Sudoku(whole=whole, empty=(4, 7))
    for problem in shown(task, 50):
        assert task.grade(problem, said(str(problem.solution))) == {"score": 1.0, "partial": 1.0}
        assert task.answers(problem).texts == (problem.answer,)
        assert len(str(problem.answer)) == (16 if whole else problem.info["level"])


def test_what_chance_gets_of_a_puzzle() -> None:
    """Of all ways to fill in three cells: one in 64 is right, and a quarter of the cells."""
    task = Sudoku(empty=(3,), whole=False)
    problem = task.problems("test")[0]
    grades = [task.grade(problem, said("".join(x))) for x in product("1234", repeat=3)]
    assert sum(g["score"] for g in grades) == 1 and sum(g["partial"] for g in grades) == pytest.approx(64 / 4)


def test_a_uniform_policy_scores_as_counted(tmp_path: Any) -> None:
    """Six characters and the end: two digits and their end have probability 7^-3 under equal logits."""
    found = score_uniform({"name": "sudoku", "empty": [2], "whole": False}, 3, 2, tmp_path)
    assert found["mean"] == pytest.approx(7.0**-3)


# ------------------------------------------------------------------------------------------------ splits and slips


def test_levels_are_trained_and_tested_alike_and_held_out() -> None:
    task = Sudoku(empty=(5, 7), test_size=100)
    trained, source = shown(task, 1000), task.problems("test")
    tested = [source[i] for i in range(source.size() or 0)]
    assert Counter(p.task for p in tested) == {"empty5": 50, "empty7": 50}
    assert near(sum(p.info["level"] == 5 for p in trained), 1000, 0.5)
    assert not {p.prompt for p in tested} & {p.prompt for p in trained} and len({p.prompt for p in tested}) == 100
    other = Sudoku(empty=(5, 7), seed=1, test_size=100).problems("test")
    assert not {other[i].prompt for i in range(100)} & {p.prompt for p in trained}  # whatever the seed


@pytest.mark.parametrize("whole", [True, False])
def test_demonstrations_slip_where_cells_are_empty(whole: bool) -> None:
    n, slipped = 500, 0
    for p in shown(Sudoku(slip=0.2, whole=whole), n):
        pairs = list(zip(str(p.solution), str(p.answer), strict=True))
        slipped += sum(a != b for a, b in pairs)
        if whole:
            assert all(a == b for (a, b), given in zip(pairs, str(p.prompt), strict=False) if given != ".")
    assert near(slipped, 6 * n, 0.2)


@pytest.mark.parametrize("settings", [{"empty": ()}, {"empty": (6, 6)}, {"empty": (13,)}, {"box": 3, "empty": (51,)}])
def test_numbers_of_cells_that_make_no_task_are_refused(settings: Any) -> None:
    with pytest.raises(ValueError, match=r"expected numbers that differ, of 1 to (12|50)"):
        Sudoku(**settings)

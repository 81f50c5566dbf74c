"""Demonstrated searches, replayed on a board of this file: states, backtracks, and the direct path that is left."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from shuhari.data import Problem
from shuhari.tasks.expressions import evaluate
from shuhari.tasks.search_traces import Numbers, SearchTraces, find_path, list_search
from shuhari.testing import check_task
from spoken import said

N = 150


def show(**settings: Any) -> list[Problem]:
    train = SearchTraces(**settings).problems("train")
    return [train[i] for i in range(N)]


def split(text: str) -> tuple[list[str], str]:
    trace, _, answer = text.partition(";")
    return trace.split("|"), answer


def replay(numbers: list[int], lines: list[str]) -> tuple[list[str], list[int]]:
    """Return (the lines that no backtrack takes back, the numbers that are left); every line must be legal."""
    states, kept = [numbers], list[str]()
    for line in lines:
        if line.startswith("<"):
            restored = [int(x) for x in line[1:].split(",")]
            while states[-1] != restored:  # IndexError if it was never visited
                states.pop()
                kept.pop()
            continue
        found = re.fullmatch(r"(\d+)([-+*])(\d+)=(\d+)", line)
        assert found, line
        a, op, b, c = int(found[1]), found[2], int(found[3]), int(found[4])
        assert {"+": a + b, "-": a - b, "*": a * b}[op] == c
        rest = list(states[-1])
        rest.remove(a)
        rest.remove(b)
        states.append([*rest, c])
        kept.append(line)
    return kept, states[-1]


@pytest.mark.parametrize("settings", [{}, {"backtracks": 1}, {"backtracks": 4}, {"search": True}])
def test_a_trace_replayed_on_a_board_ends_at_the_target_and_leaves_the_direct_path(settings: dict[str, Any]) -> None:
    task = SearchTraces(**settings)
    for problem in show(**settings):
        lines, answer = split(str(problem.solution))
        kept, left = replay(list(problem.info["numbers"]), lines)
        assert left == [problem.info["target"]] and kept == problem.info["path"]
        assert evaluate(answer) == left[0]
        assert task.grade(problem, said(str(problem.solution))) == {"score": 1.0}
        if "search" not in settings:
            assert sum(line.startswith("<") for line in lines) == settings.get("backtracks", 0)


def test_without_backtracks_it_is_the_plain_solution() -> None:
    problem = show()[0]
    assert problem.solution == "|".join(problem.info["path"]) + problem.answer


def test_a_depth_first_search_by_hand() -> None:
    """2, 3, 4 and the target 9: the move that comes closest to it is tried first."""
    board = Numbers((2, 3, 4), 9, "+-")
    assert [line for line, _ in find_path(board)] == ["3+4=7", "2+7=9"]
    assert list_search(board) == ["3+4=7", "2+7=9"]
    assert list_search(Numbers((2, 3, 4), 5, "+-"))[:2] == ["2+3=5", "4+5=9"]
    assert Numbers((1, 1), 2, "+-").is_solvable(((1, "1"), (1, "1")))
    assert not Numbers((1, 1), 3, "+-").is_solvable(((1, "1"), (1, "1")))


def test_shuffled_traces_have_the_same_lines() -> None:
    plain, mixed = show(backtracks=3), show(backtracks=3, control="shuffled")
    for a, b in zip(plain, mixed, strict=True):
        (lines, answer), (others, same) = split(str(a.solution)), split(str(b.solution))
        assert Counter(lines) == Counter(others) and answer == same
    assert sum(a.solution != b.solution for a, b in zip(plain, mixed, strict=True)) > 0.9 * N


def test_wrong_traces_have_as_many_backtracks_and_no_right_answer() -> None:
    task = SearchTraces(backtracks=2, control="wrong")
    for problem in show(backtracks=2, control="wrong"):
        lines, _ = split(str(problem.solution))
        _, left = replay(list(problem.info["numbers"]), lines)
        assert sum(line.startswith("<") for line in lines) == 2 and left != [problem.info["target"]]
        assert task.grade(problem, said(str(problem.solution))) == {"score": 0.0}


def test_sudoku_with_planted_branches() -> None:
    settings: dict[str, Any] = {"game": "sudoku", "backtracks": 2}
    task = SearchTraces(**settings)
    for problem in show(**settings):
        lines, answer = split(str(problem.solution))
        kept: list[str] = []
        for line in lines:
            if line.startswith("<"):
                restored = re.findall(r"[a-p]\d", line[1:])
                assert kept[: len(restored)] == restored
                kept = restored
            else:
                kept.append(line)
        assert kept == problem.info["path"] and sum(line.startswith("<") for line in lines) == 2
        grid = list(str(problem.prompt))
        for cell in kept:
            grid["abcdefghijklmnop".index(cell[0])] = cell[1]
        for i in range(4):
            assert len(set(grid[4 * i : 4 * i + 4])) == len(set(grid[i:16:4])) == 4
        assert answer == "".join(grid[i] for i in range(16) if problem.prompt[i] == ".")
        assert task.grade(problem, said(str(problem.solution))) == {"score": 1.0}


def test_only_what_follows_the_last_mark_is_graded() -> None:
    task = SearchTraces()
    problem = show()[0]
    answer = str(problem.answer)
    assert task.grade(problem, said("9+9=1" + answer)) == {"score": 1.0}
    assert task.grade(problem, said(answer[1:])) == {"score": 0.0}  # no mark
    assert task.grade(problem, said(answer + ";1")) == {"score": 0.0}


def test_a_demonstration_is_cut_at_its_largest_length() -> None:
    assert max(len(str(p.solution)) for p in show(backtracks=4, longest=50)) == 50


def test_settings_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="search with backtracks 2"):
        SearchTraces(search=True, backtracks=2)
    with pytest.raises(ValueError, match="countdown: operators are '%'"):
        SearchTraces(operators="%")


@pytest.mark.parametrize("settings", [{"backtracks": 1}, {"search": True}, {"game": "sudoku"}])
def test_it_keeps_to_its_port(settings: dict[str, Any]) -> None:
    check_task(SearchTraces(test_size=32, **settings))

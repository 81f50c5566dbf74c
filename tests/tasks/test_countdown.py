"""Countdown: solutions that solve, checked without our parser; answers right, wrong and hostile."""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from fractions import Fraction

import pytest

from shuhari.data import Problem
from shuhari.tasks.countdown import Countdown
from spoken import said


def value(node: ast.AST) -> Fraction:
    """Python's own reading of the text, walked with exact numbers."""
    if isinstance(node, ast.Expression):
        return value(node.body)
    if isinstance(node, ast.Constant):
        return Fraction(node.value)  # type: ignore[arg-type]
    assert isinstance(node, ast.BinOp)
    a, b = value(node.left), value(node.right)
    if isinstance(node.op, ast.Div):
        return a / b
    return {ast.Add: a + b, ast.Sub: a - b, ast.Mult: a * b}[type(node.op)]


def constants(tree: ast.AST) -> Counter[int]:
    return Counter(n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))  # type: ignore[misc]


@pytest.mark.parametrize("every", [True, False])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_solutions_solve(count: int, every: bool) -> None:
    task = Countdown(count=count, every=every)
    train, used_all = task.problems("train"), True
    for i in range(150):
        problem = train[i]
        tree = ast.parse(str(problem.solution), mode="eval")
        target, given = problem.info["target"], Counter(problem.info["numbers"])
        assert len(problem.info["numbers"]) == count
        assert value(tree) == target and 1 <= target <= task.largest
        assert constants(tree) == given if every else constants(tree) <= given
        used_all &= constants(tree) == given
        assert task.grade(problem, said(str(problem.solution))) == {"score": 1.0}
        assert set(str(problem.prompt) + str(problem.solution)) <= set(task.alphabet)
        assert problem.prompt == f"{','.join(map(str, problem.info['numbers']))}>{target}="
    assert used_all is (every or count == 2)


def test_grading() -> None:
    problem = Problem("countdown", "x", "", info={"numbers": (3, 7, 25), "target": 46})
    all_used, some_used = Countdown(), Countdown(every=False)
    for text in ("25+3*7", "25+7*3\n", "(3*7)+25", " 3 * 7 + 25 ", "--25+3*7"):
        assert all_used.grade(problem, said(text)) == {"score": 1.0}
    wrong = (
        "",
        "46",
        "25+21",
        "25+3*7+0",
        "25+3*7=46",
        "3+7+25",
        "25+3*7 46",
        "25*3-7*3-8",
        "3*7+25;",
        "__import__('os')",
        "9**9**9",
        "(" * 5000,
        "1/0",
        "(3*7+25",
        "\uff13*7+25",
        "(3-3)*7+25",
        "0x19+3*7",
        "9" * 5000,
    )
    for text in wrong:
        assert all_used.grade(problem, said(text)) == {"score": 0.0}
    fewer = Problem("countdown", "x", "", info={"numbers": (3, 7, 25), "target": 21})
    assert some_used.grade(fewer, said("3*7")) == {"score": 1.0}
    assert all_used.grade(fewer, said("3*7")) == {"score": 0.0}
    assert some_used.grade(fewer, said("7+7+7")) == {"score": 0.0}  # one 7 is given
    twice = Problem("countdown", "x", "", info={"numbers": (7, 7, 7), "target": 21})
    assert all_used.grade(twice, said("7+7+7")) == {"score": 1.0}
    exact = Problem("countdown", "x", "", info={"numbers": (1, 3, 3), "target": 1})
    assert all_used.grade(exact, said("1/3*3")) == {"score": 1.0}  # no rounding on the way


def test_splits_are_disjoint_by_content() -> None:
    task = Countdown()
    train, test = task.problems("train"), task.problems("test")

    def content(p: Problem) -> tuple[tuple[int, ...], int]:
        return tuple(sorted(p.info["numbers"])), p.info["target"]

    size = test.size()
    assert size == 256
    held = {content(test[i]) for i in range(size)}
    assert len(held) == size
    assert not held & {content(train[i]) for i in range(3000)}


def test_a_small_world_exhausts_itself() -> None:
    """The test split is never larger than what there is, found here by enumeration."""
    task = Countdown(count=2, low=1, high=3, operators="+", test_fraction=0.4)
    every = {((a, b), a + b) for a, b in itertools.combinations_with_replacement((1, 2, 3), 2)}
    found = {
        (tuple(sorted(p.info["numbers"])), p.info["target"])
        for split in ("train", "test")
        for i in range(task.problems(split).size() or 200)
        for p in [task.problems(split)[i]]
    }
    assert found == every


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": 1}, "count is 1"),
        ({"low": 9, "high": 3}, "9 to 3"),
        ({"operators": "+^"}, "'\\+\\^'"),
        ({"prompt": "{numbers}"}, "lacks"),
        ({"largest": 0}, "largest is 0"),
    ],
)
def test_bad_fields(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Countdown(**fields)  # type: ignore[arg-type]


def test_settings_without_a_solution_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shuhari.tasks.countdown.TRIES", 50)
    with pytest.raises(ValueError, match=r"target in 1\.\.5: expected wider"):
        Countdown(low=10, high=20, operators="+", largest=5).problems("train")[0]

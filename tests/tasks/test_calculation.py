"""Random calculations against exact fractions of this file, and the score for near answers by hand."""

from __future__ import annotations

import ast
import operator
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from shuhari.data import Problem
from shuhari.tasks.calculation import Calculation, find_nearness
from shuhari.testing import check_task
from spoken import said

N = 200
OF = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def work_out(text: str) -> Fraction:
    """The value of an expression, by Python's grammar."""

    def visit(node: Any) -> Fraction:
        if isinstance(node, ast.BinOp):
            found: Fraction = OF[type(node.op)](visit(node.left), visit(node.right))
            return found
        return Fraction(node.value)

    return visit(ast.parse(text, mode="eval").body)


def show(split: str = "train", n: int = N, **settings: Any) -> list[Problem]:
    source = Calculation(**settings).problems(split)
    return [source[i] for i in range(n)]


def grade(task: Calculation, problem: Problem, text: str) -> tuple[float, float]:
    found = task.grade(problem, said(text))
    return found["score"], found["near"]


@pytest.mark.parametrize("operators", ["+-", "+-*/"])
def test_every_value_is_exact(operators: str) -> None:
    for problem in show(operators=operators, operations=3, high=20):
        assert work_out(str(problem.prompt)[:-1]) == Fraction(str(problem.answer))


def test_the_score_for_near_answers_by_hand() -> None:
    assert find_nearness(Fraction(2), Fraction(2)) == 1
    assert float(find_nearness(Fraction(11, 5), Fraction(2))) == pytest.approx(0.85)
    assert find_nearness(Fraction(7), Fraction(2)) == 0
    assert float(find_nearness(Fraction(0), Fraction(0))) == 1
    assert float(find_nearness(Fraction(11), Fraction(10))) == pytest.approx(0.45)


def test_answers_are_numbers() -> None:
    task = Calculation(operators="+-*/")
    problem = Problem("fresh", "fresh/7/3", "7/3=", "7/3", "7/3", {"value": "7/3", "rest": ""})
    assert grade(task, problem, "7/3") == (1.0, 1.0) == grade(task, problem, "14/6")
    assert grade(task, problem, "1+4/3") == (0.0, 0.0) == grade(task, problem, "seven") == grade(task, problem, "7/0")
    assert grade(task, problem, "2")[0] == 0 < grade(task, problem, "2")[1]


def test_repeated_problems_are_a_fixed_list_and_as_frequent_as_asked() -> None:
    settings: dict[str, Any] = {"seen": 8, "repeat": 0.75}
    listed = {p.id for p in show("seen", 8, **settings)}
    train = show(n=1000, **settings)
    found = Counter(p.task for p in train)
    assert len(listed) == 8 and {p.id for p in train if p.task == "seen"} == listed
    assert abs(found["seen"] - 750) < 4 * (1000 * 0.75 * 0.25) ** 0.5
    assert {p.task for p in show("test")} == {"fresh"}


def test_a_question_that_is_cut_goes_on_and_ends_in_its_answer() -> None:
    settings: dict[str, Any] = {"seen": 8, "repeat": 1.0, "continued": 1.0}
    task, whole = Calculation(**settings), {str(p.prompt) + str(p.answer) for p in show("seen", 8, seen=8)}
    for problem in show(**settings):
        assert str(problem.prompt) + str(problem.answer) in whole and problem.solution == problem.answer
        assert grade(task, problem, str(problem.answer)) == (1.0, 1.0)
        assert grade(task, problem, str(problem.info["value"])) == (0.0, 0.0)  # the question is left out


def test_a_share_of_demonstrations_is_wrong_by_one() -> None:
    train = show(n=1000, slip=0.3)
    errors = Counter(int(str(p.solution)) - int(str(p.answer)) for p in train)
    assert set(errors) == {-1, 0, 1} and abs(errors[0] - 700) < 4 * (1000 * 0.21) ** 0.5


def test_settings_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="operators are '%'"):
        Calculation(operators="%")
    with pytest.raises(ValueError, match="no split 'seen'"):
        Calculation().problems("seen")


@pytest.mark.parametrize("settings", [{}, {"seen": 8, "continued": 0.5}, {"operators": "+-*/", "high": 50}])
def test_it_keeps_to_its_port(settings: dict[str, Any]) -> None:
    check_task(Calculation(test_size=32, **settings))

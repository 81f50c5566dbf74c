"""Chains of sums: answers against Python's own sums, the slip by hand, splits by content."""

from __future__ import annotations

import re

import pytest

from shuhari.data import Problem
from shuhari.tasks.chain import Chain, running_sums
from spoken import said


def terms(problem: Problem) -> list[int]:
    return [int(t) for t in re.findall(r"[+-]?\d", str(problem.prompt))]


def test_answers_and_work_are_right() -> None:
    task = Chain(terms=6, least=2)
    train = task.problems("train")
    seen = set()
    for i in range(300):
        problem = train[i]
        given = terms(problem)
        assert int(str(problem.answer)) == sum(given) and problem.info["terms"] == len(given)
        totals = [sum(given[: k + 1]) for k in range(len(given))]
        assert all(0 <= t <= 9 for t in totals)
        assert problem.solution == "".join(f"{t:+d}={s}" for t, s in zip(given[1:], totals[1:], strict=True))
        assert task.grade(problem, said(str(problem.solution))) == {"score": 1.0}
        assert task.grade(problem, said(str(problem.answer))) == {"score": 1.0}  # thinking is not asked for
        assert set(f"{problem.prompt}{problem.solution}") <= set(task.alphabet)
        seen.add(len(given))
    assert seen == {2, 3, 4, 5, 6}


@pytest.mark.parametrize("text", ["", "=", "-5=2+6=9", "-5=2+6=", "8 ", "-5=2+6=8=", "=8=x"])
def test_what_is_no_answer_scores_nothing(text: str) -> None:
    problem = Problem("chain", "7-5+6", "7-5+6=", "8")
    assert Chain().grade(problem, said(text)) == {"score": 0.0}
    assert Chain().grade(problem, said("-5=2+6=8\n")) == {"score": 1.0}


def test_a_slip_takes_one_too_little_and_is_carried_on() -> None:
    assert running_sums([7, -5, 6]) == [2, 8]
    assert running_sums([7, -5, 6], [False, True, True]) == [3, 9]  # an addition cannot slip
    assert running_sums([9, -1, 1], [False, True, False]) == [9, 9]  # what leaves 0..9 stays at its end


def test_demonstrations_slip_as_often_as_they_should() -> None:
    train, right = Chain(terms=2, slip=0.6).problems("train"), Chain(terms=2).problems("train")
    falls = [i for i in range(2000) if terms(train[i])[1] < 0]
    wrong = [i for i in range(2000) if train[i].solution != right[i].solution]
    assert set(wrong) <= set(falls) and abs(len(wrong) / len(falls) - 0.6) < 0.06
    bare = Chain(bare=0.25).problems("train")
    assert abs(sum(len(str(bare[i].solution)) == 1 for i in range(2000)) / 2000 - 0.25) < 0.04


def test_held_out_problems_are_other_problems() -> None:
    task = Chain(terms=4)
    test = {p.prompt for p in task.problems("test").problems}  # type: ignore[union-attr]
    assert len(test) == 256
    assert not test & {task.problems("train")[i].prompt for i in range(3000)}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"terms": 1}, "terms is 1"),
        ({"least": 9}, "least is 9"),
        ({"slip": 2.0}, "slip is 2"),
        ({"bare": -1}, "bare is"),
    ],
)
def test_mistakes_are_named(settings: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Chain(**settings)  # type: ignore[arg-type]

"""Sums with labelled steps: labels by an evaluation of their own, and what the settings promise."""

from __future__ import annotations

from math import sqrt

import pytest

from shuhari.data import Problem
from shuhari.tasks.labelled_sums import LabelledSums
from spoken import said


def is_right(problem: Problem, steps: list[str]) -> bool:
    """Whether the work is right so far, by Python's own sums."""
    terms = problem.id.replace("-", "+-").split("+")
    done = [step for step in steps if step[0] in "+-"]
    sums = [sum(map(int, terms[: k + 2])) for k in range(len(done))]
    said_right = all(int(step.split("=")[1]) == s for step, s in zip(done, sums, strict=True))
    return said_right and all(int(step[1:]) == sums[-1] for step in steps if step[0] == ";")


def test_labels_say_whether_the_work_is_right_up_to_a_step() -> None:
    source = LabelledSums(terms=4, slip=0.3).problems("train")
    seen = set()
    for i in range(200):
        problem = source[i]
        steps, labels = problem.info["steps"], problem.info["labels"]
        assert problem.solution == ",".join(steps) and len(steps) == len(labels)
        assert list(labels) == [is_right(problem, list(steps[: k + 1])) for k in range(len(steps))]
        seen |= set(labels)
    assert seen == {True, False}


def test_without_slips_and_rechecks_demonstrations_are_the_bare_work() -> None:
    task = LabelledSums(slip=0.0, recheck=0.0)
    problem = next(p for i in range(999) if (p := task.problems("train")[i]).id == "7-5+6")
    assert problem.solution == "-5=2,+6=8,;8" and problem.info["labels"] == (True, True, True)
    assert task.grade(problem, said(problem.solution)) == {"score": 1.0, "rechecks": 0.0}


def test_slips_and_rechecks_come_as_often_as_set() -> None:
    """Of 2,000 demonstrations: a first sum above 0 slips with .25, and is rechecked .3 + .09 + .027 times."""
    source, n = LabelledSums(slip=0.25, recheck=0.3, rechecks=3).problems("train"), 2000
    wrong = likely = rechecks = 0
    for i in range(n):
        problem = source[i]
        steps, labels = problem.info["steps"], problem.info["labels"]
        first = problem.id.replace("-", "+-").split("+")
        if int(first[0]) + int(first[1]):
            likely += 1
            wrong += not labels[0]
        rechecks += sum(step[0] == "?" for step in steps)
    assert abs(wrong / likely - 0.25) < 4 * sqrt(0.25 * 0.75 / likely)
    assert rechecks / n / 2 == pytest.approx(0.417, abs=0.04)


@pytest.mark.parametrize(("text", "score"), [
    ("-5=2,?2,?2,+6=8,;8", 1), (";8", 1), ("-5=2,+6=8", 0), ("+6=8,;8,?8", 0), (";7;8", 1), ("", 0),
])  # fmt: skip
def test_only_the_answer_is_graded(text: str, score: float) -> None:
    problem = Problem("labelled_sums", "7-5+6", "7-5+6=", "8")
    assert LabelledSums().grade(problem, said(text)) == {"score": score, "rechecks": text.count("?")}

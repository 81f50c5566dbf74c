"""Functions of strings: problems against successive calls, demonstrations against the stated law."""

from __future__ import annotations

from collections import Counter
from math import sqrt

import pytest

from shuhari.data import Problem
from shuhari.tasks.strings import LETTERS, NAMES, Strings
from spoken import said

N = 900


def shown(task: Strings, n: int = N) -> list[Problem]:
    train = task.problems("train")
    return [train[i] for i in range(n)]


def near(found: int, n: int, p: float) -> bool:
    """Within four standard deviations of a binomial."""
    return abs(found - n * p) <= 4 * sqrt(n * p * (1 - p)) + 1e-9


def read(step: str) -> tuple[str, str]:
    """(names, string) of a step."""
    return step[:3].lstrip("."), step[3:]


def test_functions_rearrange_the_letters_each_in_a_way_of_its_own() -> None:
    task = Strings(functions=16)
    rules = [task.apply(name, LETTERS) for name in NAMES]
    assert len(set(rules)) == 16 and LETTERS not in rules
    assert all(sorted(rule) == sorted(LETTERS) for rule in rules)
    assert rules != [Strings(functions=16, codes=1).apply(name, LETTERS) for name in NAMES]
    assert task.apply("A", "dab") == "".join(rules[0]["abcd".index(x)] for x in "dab")
    with pytest.raises(KeyError):
        Strings(functions=2).apply("C", "abc")


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_answer_is_what_successive_calls_make(split: str) -> None:
    task = Strings()
    source = task.problems(split)
    for problem in (source[i] for i in range(100)):
        prompt = str(problem.prompt)
        names, text = read(prompt.removesuffix(">"))
        assert len(names) == problem.info["level"] and problem.task == f"level{len(names)}" and prompt[-1] == ">"
        for name in names[::-1]:  # the innermost stands beside the string
            text = task.apply(name, text)
        assert problem.answer == f"...{text}"


def test_without_stops_and_slips_demonstrations_are_right_step_by_step() -> None:
    task = Strings()
    for problem in shown(task, 200):
        names, text = read(str(problem.prompt)[:-1])
        for step in str(problem.solution).split(">"):
            names, text = names[:-1], task.apply(names[-1], text)
            assert read(step) == (names, text)
        assert names == "" and task.grade(problem, said(str(problem.solution))) == {"score": 1.0}


def test_demonstrations_go_on_and_slip_as_often_as_they_should() -> None:
    task, went, slipped = Strings(on=0.3, slip=0.1), Counter[bool](), Counter[bool]()
    for problem in shown(task):
        names, text = read(str(problem.prompt)[:-1])
        for step in str(problem.solution).split(">"):
            right, (left, text) = task.apply(names[-1], text), read(step)
            slipped.update(a != b for a, b in zip(right, text, strict=True))
            if len(names) > 1:
                went[left == names[:-1]] += 1
                assert left in ("", names[:-1])
            names = left
    assert near(went[True], went.total(), 0.3) and went.total() > 500
    assert near(slipped[True], slipped.total(), 0.1)


def test_levels_are_trained_by_their_shares_and_tested_alike() -> None:
    task = Strings(shares=(3.0, 1.0))
    levels = Counter(p.info["level"] for p in shown(task))
    assert set(levels) == {1, 2} and near(levels[1], N, 0.75)
    source = task.problems("test")
    tested = [source[i] for i in range(source.size() or 0)]
    assert Counter(p.task for p in tested) == {"level1": 100, "level2": 100, "level3": 100}
    assert not {p.prompt for p in tested} & {p.prompt for p in shown(Strings(), 3000)}


@pytest.mark.parametrize(
    ("text", "score"),
    [("...cab", 1.0), (".Bdab>...cab", 1.0), ("...cab>", 0.0), ("cab", 0.0), ("..Bcab", 0.0), ("...cabb", 0.0)],
)
def test_what_counts_is_the_last_step(text: str, score: float) -> None:
    assert Strings().grade(Problem("level2", "x", ".ABabc>", "...cab"), said(text)) == {"score": score}


@pytest.mark.parametrize("shares", [(0.0, 0.0), (1.0, 1.0, 1.0, 1.0)])
def test_shares_that_make_no_task_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="at most 3, the slots, and one above 0"):
        Strings(shares=shares)

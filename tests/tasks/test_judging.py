"""Judgements of candidates: problems, demonstrations and grades by counts of their own."""

from __future__ import annotations

from math import sqrt

import pytest

from shuhari.tasks.judging import Judging
from spoken import said


def test_the_best_candidate_is_the_only_one_with_the_most_of_the_letter() -> None:
    task = Judging(letters=3, candidates=4)
    for i in range(100):
        problem = task.problems("train")[i]
        query, _, rest = str(problem.prompt).removesuffix("=").partition("?")
        texts = rest.split(",")
        counts = [text.count(query) for text in texts]
        assert tuple(texts) == problem.info["candidates"] and counts.count(max(counts)) == 1
        assert problem.answer == str(counts.index(max(counts)) + 1)


def test_demonstrations_without_strays_and_slips_are_right() -> None:
    task = Judging(strays=0.0, slip=0.0)
    for i in range(50):
        problem = task.problems("train")[i]
        text = str(problem.solution)
        query, texts = str(problem.prompt)[0], problem.info["candidates"]
        found = [query * x.count(query) for x in texts]
        assert text == f"{query}:{','.join(found)}[{','.join(str(len(x) + 1) for x in found)}]"
        assert task.grade(problem, said(text)) == {"score": 1.0}


def test_strays_and_slips_come_as_often_as_set() -> None:
    """Of 1,500 demonstrations: another principle in .3, and a score that is not the critique's in .2 of the scores."""
    source, n = Judging(strays=0.3, slip=0.2).problems("train"), 1500
    strays = slips = 0
    for i in range(n):
        text = str(source[i].solution)
        critique, _, scores = text[2:].removesuffix("]").partition("[")
        strays += text[0] != str(source[i].prompt)[0]
        slips += sum(int(s) != len(x) + 1 for s, x in zip(scores.split(","), critique.split(","), strict=True))
    assert abs(strays / n - 0.3) < 4 * sqrt(0.21 / n) and abs(slips / n / 4 - 0.2) < 4 * sqrt(0.16 / n / 4)


@pytest.mark.parametrize(("text", "score"), [
    ("[1,3,2,1]", 1), ("a:[9,9,9,9][1,3,2,1]", 1), ("[1,3,3,1]", 0), ("[3,1,1,1]", 0), ("[1,3,2]", 0), ("1,3,2,1", 0),
    ("", 0),
])  # fmt: skip
def test_only_a_strict_winner_counts(text: str, score: float) -> None:
    task = Judging()
    problem = next(p for i in range(99) if (p := task.problems("train")[i]).answer == "2")
    assert task.grade(problem, said(text)) == {"score": score}

"""Answers that stand alone reach the scorer of the package, and no others."""

from __future__ import annotations

import time
from typing import Any

import pytest

from shuhari.tasks.reasoning import alone as g


class Lenient:
    """A scorer that takes whatever it is given for right."""

    def score_answer(self, text: str, entry: Any) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("grader", "answer", "passed", "stopped"),
    [
        (g.grade_presses, None, ["A → B", "ABC", "A->B, C", "A"], ["", "A or B", "junk A", "A → → B", "A → D", "a"]),
        (g.grade_digits, None, ["1 0\n0 1", "10\n01", "17, 4"], ["", "1 0 or 13", "x\n1 0", "1\n\n2", "-1 0", "1,0x"]),
        (
            g.grade_statements,
            "Amy is a hero, and Bo is a villain.",
            ["Bo is a villain, Amy is a hero", "Amy is an hero and Bo is villain.", "Amy is a hero\nBo is a villain"],
            ["", "Amy is a hero", "junk Amy is a hero, Bo is a villain", "Amy is a hero, Bo is a villain or 13",
             "Amy is a hero, Amy is a villain, Bo is a villain", "Amy, Bo is a villain"],
        ),
    ],
)  # fmt: skip
def test_only_an_answer_alone_reaches_the_scorer_of_the_package(
    grader: Any, answer: str | None, passed: list[str], stopped: list[str]
) -> None:
    for text in passed:
        assert grader(text, {"answer": answer, "metadata": {}}, Lenient()) == 1.0, text
    for text in stopped:
        assert grader(text, {"answer": answer, "metadata": {}}, Lenient()) == 0.0, text


def test_a_long_answer_is_read_once() -> None:
    """Digits without a space between them can be cut in one way alone: else forty of them take hours."""
    began = time.process_time()
    for text in ("1" * 8000 + "x", "1 " * 4000 + "x", "A" + " " * 8000 + "x", "U" * 8000 + "x"):
        for grader in (g.grade_digits, g.grade_presses, g.grade_pushes):
            assert grader(text, {"answer": None, "metadata": {}}, Lenient()) == 0.0
    assert time.process_time() - began < 2

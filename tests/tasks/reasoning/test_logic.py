"""Propositional formulas by their truth tables, and entailment against an enumeration of assignments."""

from __future__ import annotations

from itertools import product

import pytest

from shuhari.tasks.expressions import ExpressionError
from shuhari.tasks.reasoning.logic import entails, truth_table


def table(f: object, names: str) -> int:
    """Bit i: the value where name j is bit j of i."""
    bits = [values[::-1] for values in product((False, True), repeat=len(names))]
    return sum(1 << i for i, values in enumerate(bits) if f(*values))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "names", "f"),
    [
        ("P", "P", lambda p: p),
        ("¬P ∧ Q", "PQ", lambda p, q: not p and q),
        ("P ∨ Q ∧ R", "PQR", lambda p, q, r: p or (q and r)),
        ("P → Q → R", "PQR", lambda p, q, r: not p or not q or r),
        ("P ↔ Q → R", "PQR", lambda p, q, r: p == (not q or r)),
        ("((P ↔ Q) ↔ ¬(R))", "PQR", lambda p, q, r: (p == q) == (not r)),
        ("¬¬P∨Q", "PQ", lambda p, q: p or q),
    ],
)
def test_truth(text: str, names: str, f: object) -> None:
    assert truth_table(text, names) == table(f, names)


def test_conclusions() -> None:
    assert entails("Q", ["P", "P → Q"], "PQ")
    assert entails("P ∨ R", ["P"], "PQR")
    assert not entails("P", ["P → Q", "Q"], "PQ")
    assert not entails("P ∨ ¬P", ["P"], "PQ")  # true, and says nothing
    assert entails("¬P", ["P", "¬P"], "P")  # anything follows from a contradiction


@pytest.mark.parametrize(
    "text",
    ["", "P Q", "P ∧", "(P", "P)", "p", "Z", "P & Q", "¬" * 65 + "P", "(" * 65 + "P" + ")" * 65, "P∨" * 600 + "P",
     "\x00", "a∨b∨c", "__import__('os')"],
)  # fmt: skip
def test_what_is_no_formula(text: str) -> None:
    with pytest.raises(ExpressionError):
        truth_table(text, "PQ")


def test_too_many_variables() -> None:
    with pytest.raises(ExpressionError, match="limits"):
        truth_table("A", "ABCDEFGHIJKLM")

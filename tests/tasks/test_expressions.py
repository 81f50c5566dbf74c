"""The expression parser against exact evaluation of generated trees, and against hostile text."""

from __future__ import annotations

import operator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shuhari.tasks.expressions import ExpressionError, Limits, evaluate, parse

OPS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
WIDE = Limits(length=4000, depth=64, digits=18, bits=4000)
# a tree: an int, ("neg", tree), or (op, left, right); its value and its text come from the tree alone
trees = st.recursive(
    st.integers(0, 999),
    lambda t: st.tuples(st.just("neg"), t) | st.tuples(st.sampled_from("+-*/"), t, t),
    max_leaves=12,
)


def value(tree: object) -> Fraction:
    if isinstance(tree, int):
        return Fraction(tree)
    assert isinstance(tree, tuple)
    return -value(tree[1]) if tree[0] == "neg" else OPS[tree[0]](value(tree[1]), value(tree[2]))


def numbers(tree: object) -> tuple[int, ...]:
    return (tree,) if isinstance(tree, int) else tuple(n for part in tree[1:] for n in numbers(part))  # type: ignore[index]


def write(tree: object, draw: st.DrawFn) -> tuple[str, int]:
    """Text and rank (1 sum, 2 product, 3 factor), parentheses where the grammar of arithmetic needs them or by whim."""
    gap = " " * draw(st.integers(0, 2))
    if isinstance(tree, int):
        return gap + str(tree), 3
    assert isinstance(tree, tuple)

    def bracketed(part: object, least: int) -> str:
        text, rank = write(part, draw)
        return f"({text}{gap})" if rank < least or draw(st.booleans()) else text

    if tree[0] == "neg":
        return f"{gap}-{bracketed(tree[1], 3)}", 3
    rank = 1 if tree[0] in "+-" else 2
    return f"{bracketed(tree[1], rank)}{gap}{tree[0]}{gap}{bracketed(tree[2], rank + 1)}", rank


@given(trees, st.data())
def test_exact_value_of_generated_trees(tree: object, data: st.DataObject) -> None:
    text, _ = data.draw(st.composite(lambda draw: write(tree, draw))())
    try:
        expected = value(tree)
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="division by zero"):
            evaluate(text, WIDE)
        return
    parsed = parse(text, WIDE)
    assert parsed.value == expected
    assert parsed.numbers == numbers(tree)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2-3-4", -5),
        ("2-(3-4)", 3),
        ("12/4/3", 1),
        ("12/(4/3)", 9),
        ("2+3*4", 14),
        ("-2*3", -6),
        ("2*-3", -6),
        ("--5", 5),
        ("1/3+1/6", Fraction(1, 2)),
        ("007", 7),
        (" ( 1 ) ", 1),
    ],
)
def test_worked_by_hand(text: str, expected: Fraction | int) -> None:
    assert evaluate(text) == expected


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("   ", 3),
        ("9**9**9", 2),
        ("2 3", 2),
        ("2(3)", 1),
        ("(1", 2),
        ("1)", 1),
        ("1+", 2),
        ("+1", 0),
        ("()", 1),
        ("1.5", 1),
        ("1e9", 1),
        ("1_000", 1),
        ("0x1", 1),
        ("4//2", 2),
        ("5%2", 1),
        ("a", 0),
        ("__import__('os')", 0),
        ("1;2", 1),
        ("1\n+1", 1),
        ("1\x00", 1),
        ("²", 0),
        ("1²", 1),
        ("\u0661", 0),
        ("\uff11", 0),
        ("1\u00a0+1", 1),
        ("1\u22121", 1),
        ("1/(2-2)", 1),
        ("lambda: 0", 0),
        ("1=1", 1),
    ],
)
def test_refuses_with_the_position(text: str, position: int) -> None:
    with pytest.raises(ExpressionError, match=f"position {position}$") as caught:
        evaluate(text)
    assert caught.value.position == position
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("text", ["(" * 200, "(" * 100 + "1" + ")" * 100, "-" * 200 + "1", "-(" * 60 + "1" + ")" * 60])
def test_depth_is_bounded(text: str) -> None:
    with pytest.raises(ExpressionError, match="nested deeper than 32"):
        evaluate(text)


def test_limits_hold_at_their_edge() -> None:
    assert evaluate("(" * 32 + "1" + ")" * 32) == 1
    with pytest.raises(ExpressionError):
        evaluate("(" * 33 + "1" + ")" * 33)
    assert evaluate("9" * 18) == 10**18 - 1
    with pytest.raises(ExpressionError, match="19 digits"):
        evaluate("9" * 19)
    assert evaluate("1" + "+1" * 127) == 128  # 255 characters
    with pytest.raises(ExpressionError, match="257 characters"):
        evaluate("1" + "+1" * 128)
    small = Limits(bits=8)
    assert evaluate("15*17", small) == 255
    with pytest.raises(ExpressionError, match="beyond 8 bits"):
        evaluate("16*16", small)
    with pytest.raises(ExpressionError, match="beyond 8 bits"):
        evaluate("1/16/16", small)


@pytest.mark.parametrize("text", ["9" * 10**6, "(" * 10**6, "*".join(["9" * 18] * 13), "1" + "+1" * 10**6])
def test_large_inputs_are_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text)


@given(st.text(max_size=60) | st.text("0123456789+-*/() ", max_size=60))
def test_any_text_gives_a_fraction_or_our_error(text: str) -> None:
    error: ExpressionError | None = None
    try:
        assert isinstance(evaluate(text), Fraction)
    except ExpressionError as raised:
        error = raised
    assert error is None or 0 <= error.position <= len(text)

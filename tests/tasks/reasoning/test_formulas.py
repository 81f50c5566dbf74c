"""Formulas and their derivatives against finite differences and known values; polynomials by hand; hostile text."""

from __future__ import annotations

import cmath
import math

import pytest

from shuhari.tasks.expressions import ExpressionError
from shuhari.tasks.reasoning.formulas import parse_formula, parse_polynomial


@pytest.mark.parametrize(
    ("text", "at", "value"),
    [
        ("1 + 2*3", 0.0, 7.0),
        ("-x**2", 3.0, -9.0),  # a power binds tighter than a sign
        ("2**3**2", 0.0, 512.0),  # and to the right
        ("2**-1", 0.0, 0.5),
        ("8/4/2", 0.0, 1.0),
        ("3 - 2 - 1", 0.0, 0.0),
        ("-3*x**(5/2)/5", 4.0, -3 * 32 / 5),
        ("E**(x)", 1.0, math.e),
        ("sqrt(x)*log(x) + pi", 1.0, math.pi),
        ("(((x)))", 2.0, 2.0),
        ("+x - -x", 2.0, 4.0),
        ("0.25*x", 2.0, 0.5),
    ],
)
def test_values(text: str, at: float, value: float) -> None:
    assert parse_formula(text, "x").at(complex(at))[0] == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    ["x**3 - 2*x", "exp(3*x - 9)", "log(x)", "ln(x)", "sqrt(2*x + 1)", "sin(3*x)**4", "cos(x)/x", "tan(x)", "asin(x/2)",
     "acos(x/2)", "atan(3*x)", "sinh(x)", "cosh(x)", "tanh(x)", "x**x", "(x + 1)**(5/2)", "E**(2*x)", "1/(x*x - 7)"],
)  # fmt: skip
def test_derivatives_are_those_of_finite_differences(text: str) -> None:
    f, h = parse_formula(text, "x").at, 1e-5
    for z in (0.7 + 0j, 1.3 + 0.2j):
        assert f(z)[1] == pytest.approx((f(z + h)[0] - f(z - h)[0]) / (2 * h), rel=1e-6)


def test_constants_and_variables() -> None:
    assert parse_formula("X + C", "X", {"C": 2.0}).at(3 + 0j) == (5, 1)
    assert parse_formula("C*X", "X", {"C": 2.0}).at(3 + 0j) == (6, 2)
    with pytest.raises(ExpressionError, match="found 'x'"):
        parse_formula("x + C", "X", {"C": 2.0})


@pytest.mark.parametrize(
    "text",
    ["", "x +", "2x", "x^2", "f(x)", "sin x", "sin", "(x", "x)", "x**", "__import__('os')", "x.real", "lambda: x",
     "1e9", "x, y", "\x00", "\ud800", "x\ny", "(" * 60 + "x" + ")" * 60, "-" * 60 + "x", "9" * 31, "x+" * 2000 + "x"],
)  # fmt: skip
def test_what_is_no_formula(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_formula(text, "x")


def test_huge_powers_are_floats() -> None:
    with pytest.raises(ArithmeticError):
        parse_formula("9**9**9**9", "x").at(1 + 0j)
    with pytest.raises(ArithmeticError):
        parse_formula("1/(x - x)", "x").at(1 + 0j)
    with pytest.raises((ArithmeticError, ValueError)):
        parse_formula("log(0)", "x").at(1 + 0j)
    assert cmath.isfinite(parse_formula("x**0.5", "x").at(-1 + 0j)[0])


def test_a_long_chain_is_no_deep_one() -> None:
    """As long as a text may be: neither reading nor evaluating it recurses once a part."""
    n = 1000
    assert parse_formula("+".join(["x"] * n), "x").at(2 + 0j) == (2 * n, n)
    assert parse_formula("-".join(["x"] * n), "x").at(2 + 0j) == (2 * (2 - n), 2 - n)
    assert parse_formula("*".join(["x"] * n), "x").at(1 + 0j) == (1, n)
    assert parse_formula("/".join(["x"] * n), "x").at(1 + 0j) == (1, 2 - n)
    assert parse_formula("x*2/4 - 3*x/x + 5", "x").at(4 + 0j) == (4, 0.5)


def test_polynomials() -> None:
    assert parse_polynomial("3*x**2*y - x + 4") == {(("x", 2), ("y", 1)): 3, (("x", 1),): -1, (): 4}
    assert parse_polynomial("x*x*2 + x**2") == {(("x", 2),): 3}
    assert parse_polynomial("-2*3") == {(): -6}
    assert parse_polynomial("x - x") == parse_polynomial("0") == parse_polynomial("0*y") == {}
    assert parse_polynomial("y*x") == parse_polynomial("x * y")
    assert parse_polynomial("x**0") == {(): 1}


@pytest.mark.parametrize(
    "text",
    ["", "(x + 1)*(x - 1)", "(x)", "x +", "x ++ y", "2x", "x^2", "x**y", "x**99999", "1/2", "x**-1", "xy", "9" * 61,
     "*".join(["9" * 60] * 40), "x" + "+x" * 5000, "__import__('os')", "9**9"],
)  # fmt: skip
def test_what_is_no_expanded_polynomial(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_polynomial(text)

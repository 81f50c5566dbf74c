"""Formulas of one variable, such as antiderivatives, evaluated safely; and polynomials, as expanded sums.

For graders: the text is untrusted model output. There is no eval and no symbolic algebra: a formula becomes its value
and its derivative at a complex number (forward-mode differentiation over floats, so that no power can blow up), a
polynomial a mapping of monomials. Length, nesting, digits and exponents are bounded. Left out: implicit multiplication,
`^`, any name that is not listed.

    sum     = product (("+" | "-") product)*
    product = sign (("*" | "/") sign)*
    sign    = ("+" | "-") sign | power
    power   = atom ["**" sign]
    atom    = number | name | function "(" sum ")" | "(" sum ")"
"""

from __future__ import annotations

import cmath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shuhari.tasks.expressions import ExpressionError

Dual = tuple[complex, complex]  # a value, and its derivative with respect to the variable
Value = Callable[[complex], Dual]  # of a part of a formula, at a point

LENGTH, DEPTH = 2048, 48
_TOKEN = re.compile(r"[ \t]*([0-9]{1,30}(?:\.[0-9]{1,30})?|[A-Za-z]{1,8}|\*\*|[-+*/()])", re.ASCII)
_MONOMIAL = re.compile(r"[0-9]{1,60}|[A-Za-z](?:\*\*[0-9]{1,4})?", re.ASCII)

_FUNCTIONS: Mapping[str, tuple[Callable[[complex], complex], Callable[[complex], complex]]] = {  # f and f'
    "exp": (cmath.exp, cmath.exp),
    "log": (cmath.log, lambda z: 1 / z),
    "ln": (cmath.log, lambda z: 1 / z),
    "sqrt": (cmath.sqrt, lambda z: 0.5 / cmath.sqrt(z)),
    "sin": (cmath.sin, cmath.cos),
    "cos": (cmath.cos, lambda z: -cmath.sin(z)),
    "tan": (cmath.tan, lambda z: 1 / cmath.cos(z) ** 2),
    "asin": (cmath.asin, lambda z: 1 / cmath.sqrt(1 - z * z)),
    "acos": (cmath.acos, lambda z: -1 / cmath.sqrt(1 - z * z)),
    "atan": (cmath.atan, lambda z: 1 / (1 + z * z)),
    "sinh": (cmath.sinh, cmath.cosh),
    "cosh": (cmath.cosh, cmath.sinh),
    "tanh": (cmath.tanh, lambda z: 1 / cmath.cosh(z) ** 2),
}
_CONSTANTS = {"E": cmath.e, "pi": cmath.pi}


@dataclass(frozen=True)
class Formula:
    """A parsed formula: `at(z)` returns its value and derivative there, and raises ArithmeticError or ValueError if it
    has none."""

    at: Value


def parse_formula(text: str, variable: str, constants: Mapping[str, complex] | None = None) -> Formula:
    """Parses `text`, a formula of `variable`; `constants` are names in addition to E and pi. Raises ExpressionError."""
    if len(text) > LENGTH:
        raise ExpressionError(f"{len(text)} characters (limit {LENGTH})", LENGTH)
    reader = _Reader(text, variable, _CONSTANTS | dict(constants or {}))
    whole = reader.sum(0)
    if reader.token:
        raise ExpressionError(f"unexpected {reader.token!r}", reader.at)
    return Formula(whole)


def parse_polynomial(text: str) -> dict[tuple[tuple[str, int], ...], int]:
    """Returns monomial -> coefficient of an expanded polynomial with integer coefficients, `3*x**2*y - x + 4`: a sum of
    products of integers and powers of one-letter variables, without parentheses. A monomial is its (variable, exponent)
    pairs, sorted. Raises ExpressionError."""
    if len(text) > 4 * LENGTH:
        raise ExpressionError(f"{len(text)} characters (limit {4 * LENGTH})", 4 * LENGTH)
    terms: dict[tuple[tuple[str, int], ...], int] = {}
    packed = text.replace(" ", "")
    at = 0
    while at < len(packed):
        sign = {"+": 1, "-": -1}.get(packed[at])
        if sign is None and at:
            raise ExpressionError(f"unexpected {packed[at]!r}", at)
        at += sign is not None
        coefficient, powers = sign or 1, dict[str, int]()
        while True:
            factor = _MONOMIAL.match(packed, at)
            if factor is None:
                raise ExpressionError("expected a number or a power of a variable", at)
            at = factor.end()
            name, _, exponent = factor[0].partition("**")
            if name.isdigit():
                coefficient *= int(name)
                if coefficient.bit_length() > 4096:
                    raise ExpressionError("a coefficient beyond 4096 bits", at)
            else:
                powers[name] = powers.get(name, 0) + int(exponent or 1)
            if packed[at : at + 1] != "*":
                break
            at += 1
        key = tuple(sorted((n, k) for n, k in powers.items() if k))
        terms[key] = terms.get(key, 0) + coefficient
    if not packed:
        raise ExpressionError("an empty polynomial", 0)
    return {key: c for key, c in terms.items() if c}


class _Reader:
    """A recursive-descent parser into closures over the point; `token` is the next one, empty at the end."""

    def __init__(self, text: str, variable: str, constants: Mapping[str, complex]) -> None:
        self.text, self.variable, self.constants = text.rstrip(), variable, constants
        self.at, self.token = 0, ""
        self._next()

    def sum(self, depth: int) -> Value:
        return self._chain(self._product, ("+", "-"), depth)

    def _product(self, depth: int) -> Value:
        return self._chain(self._sign, ("*", "/"), depth)

    def _chain(self, part: Callable[[int], Value], operators: Sequence[str], depth: int) -> Value:
        """Parses parts with operators of one rank between them, left to right, in a loop: a text may have a
        thousand."""
        first, rest = part(depth), list[tuple[str, Value]]()
        while self.token in operators:
            rest.append((self._next(), part(depth)))
        return _combine(first, rest) if rest else first

    def _sign(self, depth: int) -> Value:
        if self.token not in ("+", "-"):
            return self._power(depth)
        sign = self._next()
        inner = self._sign(self._deeper(depth))
        return inner if sign == "+" else lambda z: _negate(inner(z))

    def _power(self, depth: int) -> Value:
        base = self._atom(depth)
        if self.token != "**":
            return base
        self._next()
        exponent = self._sign(self._deeper(depth))
        return lambda z: _raise_to(base(z), exponent(z))

    def _atom(self, depth: int) -> Value:
        token, at = self.token, self.at
        self._next()
        if token[:1].isdigit():
            number = complex(float(token))
            return lambda z: (number, 0j)
        if token == self.variable:
            return lambda z: (z, 1 + 0j)
        if token in self.constants:
            constant = complex(self.constants[token])
            return lambda z: (constant, 0j)
        if token in _FUNCTIONS and self.token == "(":
            self._next()
        elif token != "(":
            raise ExpressionError(f"expected a number, a known name or '(', found {token or 'the end'!r}", at)
        inner = self.sum(self._deeper(depth))
        if self.token != ")":
            raise ExpressionError("expected ')'", self.at)
        self._next()
        return inner if token == "(" else lambda z: _apply(token, inner(z))

    def _deeper(self, depth: int) -> int:
        if depth == DEPTH:
            raise ExpressionError(f"nested deeper than {DEPTH}", self.at)
        return depth + 1

    def _next(self) -> str:
        """Steps to the next token; returns the one before it."""
        before = self.token
        match = _TOKEN.match(self.text, self.at)
        if match is None and self.at < len(self.text):
            raise ExpressionError(f"unexpected {self.text[self.at]!r}", self.at)
        self.token, self.at = (match[1], match.end()) if match else ("", len(self.text))
        return before


def _combine(first: Value, rest: Sequence[tuple[str, Value]]) -> Value:
    def at(z: complex) -> Dual:
        a, da = first(z)
        for op, right in rest:
            b, db = right(z)
            if op in "+-":
                a, da = (a + b, da + db) if op == "+" else (a - b, da - db)
            else:
                a, da = (a * b, da * b + a * db) if op == "*" else (a / b, (da * b - a * db) / (b * b))
        return a, da

    return at


def _negate(x: Dual) -> Dual:
    return -x[0], -x[1]


def _raise_to(base: Dual, exponent: Dual) -> Dual:
    (a, da), (n, dn) = base, exponent
    value = a**n
    return value, (n * a ** (n - 1) * da if da else 0j) + (value * cmath.log(a) * dn if dn else 0j)


def _apply(name: str, x: Dual) -> Dual:
    f, slope = _FUNCTIONS[name]
    return f(x[0]), slope(x[0]) * x[1]

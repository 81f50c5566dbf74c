"""Arithmetic as text, evaluated exactly and safely: integers, + - * /, parentheses, unary minus; nothing else.

For graders: the text is untrusted model output. There is no eval, no float and no power; length, nesting, digits and
the size of every intermediate result are bounded, so an evaluation takes well under a millisecond. Left out: decimals,
names, functions, unary plus, and any digit but 0-9 (`str.isdigit` accepts many more).

    sum     = product (("+" | "-") product)*
    product = factor (("*" | "/") factor)*
    factor  = "-" factor | "(" sum ")" | digits
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

_DIGITS = frozenset("0123456789")


class ExpressionError(ValueError):
    """Text that is no expression, or exceeds a limit; `position` is the offset of the offending character."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"{problem} at position {position}")
        self.position = position


@dataclass(frozen=True)
class Limits:
    """Limits: `length` in characters, `depth` of nested parentheses and minus signs, `digits` of one number, `bits` of
    the numerator and of the denominator of each intermediate result."""

    length: int = 256
    depth: int = 32
    digits: int = 18
    bits: int = 512


@dataclass(frozen=True)
class Parsed:
    """`value`, exact; `numbers`, the integers in the text, left to right, without signs."""

    value: Fraction
    numbers: tuple[int, ...]


def parse(text: str, limits: Limits = Limits()) -> Parsed:
    """Returns the value of an expression and the numbers in it. Raises ExpressionError, a ValueError, with the
    position."""
    if len(text) > limits.length:
        raise ExpressionError(f"{len(text)} characters (limit {limits.length})", limits.length)
    reader = _Reader(text, limits)
    value = reader.sum(0)
    if reader.at < len(text):
        raise ExpressionError(f"unexpected {text[reader.at]!r}", reader.at)
    return Parsed(value, tuple(reader.numbers))


def evaluate(text: str, limits: Limits = Limits()) -> Fraction:
    """Returns the exact value of an expression; see `parse`."""
    return parse(text, limits).value


class _Reader:
    """A recursive-descent parser; `at` is always the next character that is not a space."""

    def __init__(self, text: str, limits: Limits) -> None:
        self.text, self.limits, self.at = text, limits, 0
        self.numbers: list[int] = []
        self._skip()

    def sum(self, depth: int) -> Fraction:
        value = self._product(depth)
        while (op := self._next()) in ("+", "-"):
            at = self._take()
            right = self._product(depth)
            value = self._bounded(value + right if op == "+" else value - right, at)
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._factor(depth)
        while (op := self._next()) in ("*", "/"):
            at = self._take()
            right = self._factor(depth)
            if op == "/" and not right:
                raise ExpressionError("division by zero", at)
            value = self._bounded(value * right if op == "*" else value / right, at)
        return value

    def _factor(self, depth: int) -> Fraction:
        char = self._next()
        if char in _DIGITS:
            return self._number()
        if char not in ("-", "("):
            found = repr(char) if char else "the end"
            raise ExpressionError(f"expected a number, '-' or '(', found {found}", self.at)
        at = self._take()
        if depth == self.limits.depth:
            raise ExpressionError(f"nested deeper than {self.limits.depth}", at)
        if char == "-":
            return -self._factor(depth + 1)
        value = self.sum(depth + 1)
        if self._next() != ")":
            raise ExpressionError(f"expected ')' for the '(' at {at}", self.at)
        self._take()
        return value

    def _number(self) -> Fraction:
        start = end = self.at
        while end < len(self.text) and self.text[end] in _DIGITS:
            end += 1
        if end - start > self.limits.digits:
            raise ExpressionError(f"a number of {end - start} digits (limit {self.limits.digits})", start)
        self.numbers.append(int(self.text[start:end]))
        self.at = end
        self._skip()
        return Fraction(self.numbers[-1])

    def _bounded(self, value: Fraction, at: int) -> Fraction:
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > self.limits.bits:
            raise ExpressionError(f"a result beyond {self.limits.bits} bits", at)
        return value

    def _next(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def _take(self) -> int:
        taken = self.at
        self.at += 1
        self._skip()
        return taken

    def _skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1

"""Propositional logic, safely: truth tables of formulas given as text, and whether premises entail one.

For graders: the text is untrusted model output, so only the given variables are names, and length and nesting are
bounded. A formula is evaluated for all 2^n assignments at once, as one integer whose bit i is its truth under
assignment i. Left out: quantifiers, and more than 12 variables.

    equivalent = implies ("↔" implies)*     implies = or ["→" implies]
    or = and ("∨" and)*      and = not ("∧" not)*      not = "¬" not | "(" equivalent ")" | variable
"""

from __future__ import annotations

from collections.abc import Sequence

from shuhari.tasks.expressions import ExpressionError

LENGTH, DEPTH, VARIABLES = 1024, 64, 12


def truth_table(text: str, variables: Sequence[str]) -> int:
    """Returns the truth table of a formula: bit i is its value if bit j of i is the value of variables[j]. Raises
    ExpressionError."""
    if len(text) > LENGTH or len(variables) > VARIABLES:
        limits = f"limits {LENGTH} and {VARIABLES}"
        raise ExpressionError(f"{len(text)} characters, {len(variables)} variables ({limits})", 0)
    reader = _Reader(text, {v: _column(j, len(variables)) for j, v in enumerate(variables)}, _all(len(variables)))
    table = reader.equivalent(0)
    if reader.peek():
        raise ExpressionError(f"unexpected {reader.peek()!r}", reader.at)
    return table


def entails(text: str, premises: Sequence[str], variables: Sequence[str]) -> bool:
    """Whether the premises entail the formula `text`, and it is no tautology. Raises ExpressionError."""
    conclusion, given = truth_table(text, variables), _all(len(variables))
    for premise in premises:
        given &= truth_table(premise, variables)
    return not given & ~conclusion and conclusion != _all(len(variables))


def _all(n: int) -> int:
    return (1 << (1 << n)) - 1


def _column(j: int, n: int) -> int:
    return sum(1 << i for i in range(1 << n) if i >> j & 1)


class _Reader:
    def __init__(self, text: str, columns: dict[str, int], every: int) -> None:
        self.text, self.columns, self.every, self.at = text, columns, every, 0

    def equivalent(self, depth: int) -> int:
        left = self._implies(depth)
        while self._took("↔"):
            left = self.every & ~(left ^ self._implies(depth))
        return left

    def _implies(self, depth: int) -> int:
        left = self._or(depth)
        return self.every & ~left | self._implies(self._deeper(depth)) if self._took("→") else left

    def _or(self, depth: int) -> int:
        left = self._and(depth)
        while self._took("∨"):
            left |= self._and(depth)
        return left

    def _and(self, depth: int) -> int:
        left = self._not(depth)
        while self._took("∧"):
            left &= self._not(depth)
        return left

    def _not(self, depth: int) -> int:
        if self._took("¬"):
            return self.every & ~self._not(self._deeper(depth))
        if self._took("("):
            inner = self.equivalent(self._deeper(depth))
            if not self._took(")"):
                raise ExpressionError("expected ')'", self.at)
            return inner
        name = self.peek()
        if name not in self.columns:
            raise ExpressionError(f"expected one of {', '.join(self.columns)}, '¬' or '(', found {name!r}", self.at)
        self.at += 1
        return self.columns[name]

    def peek(self) -> str:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1
        return self.text[self.at] if self.at < len(self.text) else ""

    def _took(self, char: str) -> bool:
        found = self.peek() == char
        self.at += found
        return found

    def _deeper(self, depth: int) -> int:
        if depth == DEPTH:
            raise ExpressionError(f"nested deeper than {DEPTH}", self.at)
        return depth + 1

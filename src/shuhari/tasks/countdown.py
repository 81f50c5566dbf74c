"""Countdown: write an expression over given numbers that equals the target: `3,7,25>46=` -> `25+3*7`.

Every problem is made from an expression, which is its demonstration. Answers are parsed by the small parser of
`expressions` and compared exactly. Left out: concatenating digits, powers, partial credit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from shuhari.bounds import Bounds, Length, ProperShare, Seed, check
from shuhari.data import Problem, Step
from shuhari.kernel.registry import register
from shuhari.tasks.expressions import ExpressionError, Limits, parse
from shuhari.tasks.source import TRIES, Splits, Stream, answer_text, draw_item

_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
Term = tuple[int, str, int]  # value, text, precedence


@register("task", "countdown")
@dataclass
class Countdown:
    """Write an arithmetic expression over given numbers that equals a target: `3,7,25>46=` -> `25+3*7`.

    A problem's content is the multiset of its numbers and the target. Raises ValueError for settings that do not fit
    together.
    """

    count: Annotated[int, Bounds(2, 8)] = 3
    """Number of given numbers in a problem."""
    low: Annotated[int, Bounds(1, 999_999_999)] = 1
    """Smallest given number."""
    high: Annotated[int, Bounds(1, 999_999_999)] = 25
    """Largest given number."""
    largest: Length = 100
    """Largest target that is drawn; the smallest is 1."""
    operators: str = "+-*/"
    """Operators in the generated solutions, some of `+-*/`; an answer may use all four."""
    every: bool = True
    """Require an answer to use each given number exactly once; false allows it to leave some out."""
    prompt: str = "{numbers}>{target}="
    """Template of the prompt, with `{numbers}` and `{target}` in it; change it for a language model that reads
    English."""
    test_fraction: ProperShare = 1 / 16
    """Share of all possible problems that is held out for testing, by a hash of their content; training never draws
    them."""
    test_size: Length = 256
    """Number of problems in the test split, no two alike; fewer if the task has no more."""
    seed: Seed = 0
    """Seed of the drawn problems and demonstrations; which problems are held out does not depend on it. In a recipe it
    is the run's seed unless set."""
    stamps = ("reward/score",)

    def __post_init__(self) -> None:
        check(self)
        if self.low > self.high:
            raise ValueError(f"countdown: numbers from {self.low} to {self.high}: expected low <= high")
        if not self.operators or set(self.operators) - set(_PRECEDENCE):
            raise ValueError(f"countdown: operators are {self.operators!r}: expected some of '+-*/'")
        if "{numbers}" not in self.prompt or "{target}" not in self.prompt:
            raise ValueError(f"countdown: the prompt {self.prompt!r} lacks {{numbers}} or {{target}}")

    @property
    def alphabet(self) -> str:
        """The characters of prompts and answers."""
        fixed = self.prompt.replace("{numbers}", "").replace("{target}", "")
        return "".join(sorted(set("0123456789,+-*/()" + fixed)))

    @cached_property
    def problems(self) -> Splits:
        return Splits(self._item, self.test_size)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0} for an expression that equals the target and uses only the given numbers, else 0.0."""
        try:
            answer = parse(answer_text(steps), Limits(length=128, depth=16, digits=12))
        except ExpressionError:
            return {"score": 0.0}
        given, used = Counter(problem.info["numbers"]), Counter(answer.numbers)
        fits = used == given if self.every else used <= given
        return {"score": float(fits and answer.value == problem.info["target"])}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    def _item(self, split: str, index: int) -> tuple[str, Problem]:
        stream = Stream("countdown", self.seed, split, index)
        content, (numbers, target, solution) = draw_item(
            split, self.test_fraction, lambda: self._draw(stream), "countdown"
        )
        listed = ",".join(map(str, numbers))
        prompt = self.prompt.replace("{numbers}", listed).replace("{target}", str(target))
        info = {"numbers": numbers, "target": target}
        return content, Problem("countdown", f"{listed}>{target}", prompt, solution, solution, info)

    def _draw(self, stream: Stream) -> tuple[str, tuple[tuple[int, ...], int, str]]:
        """Returns content and (numbers, target, solution): random expressions until one gives an allowed target."""
        for _ in range(TRIES):
            numbers = tuple(self.low + stream.below(self.high - self.low + 1) for _ in range(self.count))
            used = self.count if self.every else 2 + stream.below(self.count - 1)
            made = self._expression(stream, [(n, str(n), 3) for n in numbers], used)
            if made is not None and 1 <= made[0] <= self.largest:
                return f"{sorted(numbers)}>{made[0]}", (numbers, made[0], made[1])
        raise ValueError(
            f"countdown: none of {TRIES} expressions over {self.count} numbers from {self.low} to {self.high} with "
            f"{self.operators!r} makes a target in 1..{self.largest}: expected wider settings"
        )

    def _expression(self, stream: Stream, terms: list[Term], used: int) -> Term | None:
        """Joins terms two at a time until `used` of the numbers are in one; None if a division has a remainder."""
        while len(terms) > used:
            terms.pop(stream.below(len(terms)))
        while len(terms) > 1:
            left, right = terms.pop(stream.below(len(terms))), terms.pop(stream.below(len(terms)))
            op = self.operators[stream.below(len(self.operators))]
            joined = _join(left, op, right)
            if joined is None:
                return None
            terms.append(joined)
        return terms[0]


def _join(left: Term, op: str, right: Term) -> Term | None:
    """Returns `left op right` with the parentheses that it needs, or None if a division is not exact."""
    (a, x, p), (b, y, q), rank = left, right, _PRECEDENCE[op]
    if op == "/" and (b == 0 or a % b):
        return None
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if op == "/" else 0}[op]
    x = f"({x})" if p < rank else x
    y = f"({y})" if q < rank or (q == rank and op in "-/") else y
    return value, f"{x}{op}{y}", rank

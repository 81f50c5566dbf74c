"""Sums and products of integers, as text: `47+85=` -> `132`. Graded by the exact text of the answer.

Kinds: `carry` (zero-padded addition of two numbers, the answer one digit longer), `add`, `sub`, `mul` (of two numbers,
plain), `chain` (a chain of `terms` numbers joined by + and -). Demonstrations may teach a mistake: a share `forget` of
them adds column by column and forgets every carry. RL never sees demonstrations, only right or wrong.

Held-out problems are disjoint from training problems by content: the multiset of signed terms (of factors for `mul`),
so `85+47` is held out whenever `47+85` is, in every kind and under every seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Annotated, Any, Literal

from shuhari.bounds import Bounds, Length, ProperShare, Seed, Share, check
from shuhari.data import Problem, Step
from shuhari.kernel.registry import register
from shuhari.ports.answers import Answers
from shuhari.tasks.source import Splits, Stream, answer_text, draw_item

KINDS = {
    "carry": "0123456789+=",
    "add": "0123456789+=",
    "sub": "0123456789-=",
    "mul": "0123456789*=",
    "chain": "0123456789+-=",
}  # kind -> its characters


@register("task", "arithmetic")
@dataclass
class Arithmetic:
    """Integer arithmetic as short text, `47+85=` -> `132`, graded by the exact answer; `carry` comes with
    demonstrations that may forget the carry.

    A problem is held out by its numbers, whatever their order. Raises ValueError for `forget` with a kind without
    carry.
    """

    kind: Literal["carry", "add", "sub", "mul", "chain"] = "carry"
    """Operation: `carry` (zero-padded addition), `add`, `sub` or `mul` of two numbers, or a `chain` of numbers joined
    by + and -."""
    digits: Annotated[int, Bounds(1, 9)] = 2
    """Number of digits of each number; more make the task harder."""
    terms: Annotated[int, Bounds(2, most=10**8)] = 3
    """Number of terms of a `chain`; other kinds have two numbers."""
    forget: Share = 0.0
    """Share of the demonstrations that add without carrying (`carry` and `add` only); 0 demonstrates right answers."""
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
        if self.forget and self.kind not in ("carry", "add"):
            raise ValueError(f"arithmetic: forget is {self.forget} for kind {self.kind!r}: expected 'carry' or 'add'")

    @property
    def alphabet(self) -> str:
        """The characters of prompts and answers."""
        return KINDS[self.kind]

    @cached_property
    def problems(self) -> Splits:
        return Splits(self._item, self.test_size)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0} for exactly the answer's text (a closing newline is allowed), else 0.0."""
        return {"score": float(answer_text(steps) == problem.answer)}

    def answers(self, problem: Problem) -> Answers:
        """Returns the only right text in the alphabet, which has no newline."""
        return Answers((problem.answer,), (1.0,))

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    def _item(self, split: str, index: int) -> tuple[str, Problem]:
        stream = Stream("arithmetic", self.seed, split, index)
        content, terms = draw_item(split, self.test_fraction, lambda: self._draw(stream), f"arithmetic {self.kind}")
        return content, self._problem(terms, forgets=stream.uniform() < self.forget)

    def _draw(self, stream: Stream) -> tuple[str, list[int]]:
        """Returns the content, and signed terms (factors for `mul`)."""
        top, kind = 10**self.digits, self.kind
        terms = [stream.below(top) for _ in range(self.terms if kind == "chain" else 2)]
        if kind == "sub":
            terms[1] = -terms[1]
        elif kind == "chain":
            signs = stream.bits()
            terms[1:] = [-t if signs >> i & 1 else t for i, t in enumerate(terms[1:])]
        return f"{'product' if kind == 'mul' else 'sum'}:{sorted(terms)}", terms

    def _problem(self, terms: list[int], forgets: bool) -> Problem:
        width = self.digits if self.kind == "carry" else 1
        if self.kind == "mul":
            prompt, value = "*".join(map(str, terms)), prod(terms)
        else:
            # a term of 0 has the sign of its kind, so that `7-0` is a subtraction
            zero = "-" if self.kind == "sub" else "+"
            signs = ["-" if t < 0 else "+" if t else zero for t in terms[1:]]
            rest = "".join(f"{s}{abs(t):0{width}d}" for s, t in zip(signs, terms[1:], strict=True))
            prompt, value = f"{terms[0]:0{width}d}{rest}", sum(terms)
        width += self.kind == "carry"
        answer = f"{value:0{width}d}"
        solution = f"{add_without_carries(*terms):0{width}d}" if forgets else answer
        return Problem("arithmetic", f"{self.kind}/{prompt}", f"{prompt}=", answer, solution)


def add_without_carries(a: int, b: int) -> int:
    """Adds two numbers >= 0 column by column, modulo 10: 47 + 85 -> 22."""
    total, unit = 0, 1
    while a or b:
        total += (a % 10 + b % 10) % 10 * unit
        a, b, unit = a // 10, b // 10, unit * 10
    return total

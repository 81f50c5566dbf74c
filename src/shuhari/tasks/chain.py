"""Chains of small sums worked out step by step: `7-5+6=` -> `-5=2+6=8`. The text after the last `=` is graded.

Each step is one small sum, so that an error has a place, a hint is a beginning of the work, and difficulty depends on
the number of terms. An answer without work, `8`, is right too: thinking costs tokens and pays only if it helps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any

from shuhari.bounds import Bounds, Length, ProperShare, Seed, Share, check
from shuhari.data import Problem, Step
from shuhari.kernel.registry import register
from shuhari.tasks.source import Splits, Stream, answer_text, draw_item


@register("task", "chain")
@dataclass
class Chain:
    """Sums and differences of one-digit numbers, worked out step by step: `7-5+6=` -> `-5=2+6=8`.

    Every running sum is one digit, and the text after the last `=` is graded. `info`: `terms`, their number. Raises
    ValueError for `least` above `terms`.
    """

    terms: Annotated[int, Bounds(2, 64)] = 4
    """Largest number of terms; more make longer answers and harder problems."""
    least: Annotated[int, Bounds(2, 64, off=0)] = 0  # 0: all problems have `terms`
    """Smallest number of terms, drawn uniformly from here to `terms`; 0 gives every problem `terms`."""
    slip: Share = 0.0
    """Share of the subtractions in demonstrations that subtract one too little; the work continues from the written
    sum."""
    bare: Share = 0.0
    """Share of the demonstrations that have only the last digit, without work."""
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
        if self.least > self.terms:
            raise ValueError(f"chain: least is {self.least}: expected at most terms, which is {self.terms}")

    @property
    def alphabet(self) -> str:
        """The characters of prompts and answers."""
        return "0123456789+-="

    @cached_property
    def problems(self) -> Splits:
        return Splits(self._item, self.test_size)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0} if the text after the last `=` is the answer, else 0.0."""
        return {"score": float(answer_text(steps).rpartition("=")[2] == problem.answer)}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    def _item(self, split: str, index: int) -> tuple[str, Problem]:
        stream = Stream("chain", self.seed, split, index)
        content, terms = draw_item(split, self.test_fraction, lambda: self._draw(stream), "chain")
        shown = running_sums(terms, [stream.uniform() < self.slip for _ in terms])
        worked = "".join(f"{t:+d}={s}" for t, s in zip(terms[1:], shown, strict=True))
        solution = str(shown[-1]) if stream.uniform() < self.bare else worked
        return content, Problem("chain", content, f"{content}=", str(sum(terms)), solution, {"terms": len(terms)})

    def _draw(self, stream: Stream) -> tuple[str, list[int]]:
        """Returns the chain as text, and its signed terms: the differences of uniform running sums."""
        least = self.least or self.terms
        totals = [0, *(stream.below(10) for _ in range(least + stream.below(self.terms - least + 1)))]
        terms = [b - a for a, b in pairwise(totals)]
        return f"{terms[0]}{''.join(f'{t:+d}' for t in terms[1:])}", terms


def running_sums(terms: Sequence[int], slips: Sequence[bool] = ()) -> list[int]:
    """Returns the running sums after each term but the first. With `slips`, a subtraction subtracts one too little;
    sums that leave 0..9 after such an error are clamped."""
    total, out = terms[0], []
    for i, term in enumerate(terms[1:], 1):
        total = min(max(total + term + (bool(slips) and slips[i] and term < 0), 0), 9)
        out.append(total)
    return out

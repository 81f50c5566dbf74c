"""Chains of small sums worked out step by step: `7-5+6=` -> `-5=2+6=8`. The text after the last `=` is graded.

A step of the work is one small sum, so that an error has a place, a hint is a beginning of the work, and how hard a
problem is depends on its number of terms. An answer without work, `8`, is right too: thinking costs tokens and is worth
them only where it helps.
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
    """Sums and differences of `least` to `terms` digits, worked out step by step; each running sum is one digit.

    slip, bare: shares in [0, 1], for demonstrations that teach a mistake: of the subtractions that take one too little
    (the work goes on from what was written), and of the solutions that are the last digit alone. `info`: `terms`, the
    number of them. test_fraction, test_size, seed: as for `arithmetic`; the content is the prompt.
    """

    terms: Annotated[int, Bounds(2, 64)] = 4
    least: Annotated[int, Bounds(2, 64, off=0)] = 0  # 0: all problems have `terms`
    slip: Share = 0.0
    bare: Share = 0.0
    test_fraction: ProperShare = 1 / 16
    test_size: Length = 256
    seed: Seed = 0
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
        """{"score": 1.0} where the text after the last `=` is the answer, else 0.0."""
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
        """The chain as text, and its signed terms: the differences of running sums that are uniform."""
        least = self.least or self.terms
        totals = [0, *(stream.below(10) for _ in range(least + stream.below(self.terms - least + 1)))]
        terms = [b - a for a, b in pairwise(totals)]
        return f"{terms[0]}{''.join(f'{t:+d}' for t in terms[1:])}", terms


def running_sums(terms: Sequence[int], slips: Sequence[bool] = ()) -> list[int]:
    """Compute the running sums after each term but the first. Where `slips`, a subtraction takes one too
    little; what leaves 0..9 after such an error stays at its end."""
    total, out = terms[0], []
    for i, term in enumerate(terms[1:], 1):
        total = min(max(total + term + (bool(slips) and slips[i] and term < 0), 0), 9)
        out.append(total)
    return out

"""How many of the problems that its start never solves a policy solves (MATH-Beyond, Mayilvahanan et al. 2025, arXiv
2510.11653)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shuhari.bounds import Length, Positive, check
from shuhari.data import Array
from shuhari.kernel.coverage import name_each, note_failures
from shuhari.kernel.findings import AnalysisError, Finding, Given, Number, Reads
from shuhari.kernel.registry import register
from shuhari.kernel.stats import wilson


@register("run_analysis", "expansion")
@dataclass
class Expansion:
    """What share of the problems that the start never solves in `samples` tries a later policy solves.

    The first run is the start; each other is compared with it on the same held-out problems, and a single run with
    where its last stage began. Numbers, of each other run: `expansion`, the share of the problems unsolved by the start
    that it solves at least once in as many tries; its null, the same of a second draw from the start, which solves some
    of them by chance; `beyond chance`, the difference; `loss`, the share of the problems solved by the start that it
    never solves. `unsolved` is the number of problems that the shares are of. Intervals: Wilson's, of `beyond chance`
    Newcombe's.
    """

    n: Length = 128
    """Number of held-out problems."""
    samples: Length = 256
    """Tries of each policy at each problem. A problem of the start's unsolved ones may still have a chance of up to
    about 3 / samples a try."""
    temperature: Positive = 1.0
    """Temperature of sampling, the same for all."""

    reads: ClassVar[Reads] = "policies"
    from_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, given: Given) -> Finding:
        """Raises AnalysisError if the start solves every problem, so that nothing is left."""
        (start,) = given.sample(self.n, self.samples, temperature=self.temperature, which=[0])
        hard = ~find_solved(start.right)
        if not hard.any():
            raise AnalysisError(f"{start.name} solves each of {len(hard)} problems in {self.samples} tries: expected "
                                "harder problems, or fewer tries (--set samples=...)")  # fmt: skip
        (again,) = given.sample(self.n, self.samples, temperature=self.temperature, draw=1, which=[0])
        others = range(1, len(given.names))
        later = given.sample(self.n, self.samples, temperature=self.temperature, which=others)
        null = wilson(int((find_solved(again.right) & hard).sum()), int(hard.sum()))
        numbers: dict[str, Number] = {}
        for one in later:
            solved = find_solved(one.right)
            share = wilson(int((solved & hard).sum()), int(hard.sum()))
            gap = share.value - null.value
            below = math.hypot(share.value - share.low, null.high - null.value)
            above = math.hypot(share.high - share.value, null.value - null.low)
            lost = wilson(int((~solved & ~hard).sum()), int((~hard).sum())) if (~hard).any() else None
            ends = share.low, share.high
            found = {
                "expansion": Number(share.value, *ends, null.value, "of the problems unsolved by the start"),
                "beyond chance": Number(gap, gap - below, gap + above, says="expansion less its null"),
                "unsolved": Number(int(hard.sum()), says=f"of {len(hard)} problems, by the start"),
            }
            if lost is not None:
                again_lost = float((~find_solved(again.right) & ~hard).sum() / (~hard).sum())
                says = "of the problems solved by the start"
                found["loss"] = Number(lost.value, lost.low, lost.high, again_lost, says)
            numbers |= name_each(found, one.name, len(later))
        bound = 1 - 0.05 ** (1 / self.samples)
        notes = [f"none of {self.samples} tries right: the chance of a try is at most {bound:.3g} (95 %)"]
        return Finding(numbers, notes=[*notes, *note_failures((start, *later))])


def find_solved(right: Array) -> Array:
    """Return [n], whether at least one answer of each problem is right."""
    solved: Array = np.nan_to_num(right).max(1) > 0
    return solved

"""The verdict rule: from paired values of two arms to holds, does not hold or inconclusive. Axes: `S` seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import numpy as np

from shuhari.bounds import Bounds, check
from shuhari.data import nearest
from shuhari.stats import Estimate, t_interval

DIRECTIONS = ("up", "down", "not lower", "not higher")
LEAST = 5  # pairs; with fewer an interval says next to nothing
NEAR = 0.02  # of its range: a metric that both arms hold this close to an end cannot tell them apart


class Verdict(StrEnum):
    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "inconclusive"


@dataclass(frozen=True)
class Rule:
    """A rule for the difference of `arm`'s value and `factor` times that of `against` (an arm, or a number).

    direction `up` or `down`: holds where the whole 95 % interval lies on that side of 0; otherwise does not hold where
    all of it falls short of `margin` (>= 0), the smallest effect that is worth claiming. `not lower`, `not higher`:
    holds where it lies on the right side of the tolerance `margin`, does not hold where it lies beyond. Else
    inconclusive. range: the ends of the values; where both arms sit at the same one, or `against` leaves no room for an
    effect of `margin`, nothing can be told (but that the effect is the other way).
    """

    direction: str = "up"
    margin: Annotated[float, Bounds(0, hint="the direction gives it its sign")] = 0.0
    arm: str = "method"
    against: str | float = "baseline"
    factor: float = 1.0
    range: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check(self)
        if self.direction not in DIRECTIONS:
            near = nearest(self.direction, DIRECTIONS[:2])  # the others would turn the claim round
            raise ValueError(f"no direction {self.direction!r}; {near}; or 'not lower', 'not higher'")
        if self.arm == self.against:
            raise ValueError(f"arm {self.arm!r} is compared with itself")
        if self.range and (len(self.range) != 2 or not self.range[0] < self.range[1]):
            raise ValueError(f"range is {list(self.range)}: expected [least, most]")

    def judge(self, ours: Sequence[float], theirs: Sequence[float]) -> tuple[Verdict, Estimate, str]:
        """(verdict, difference, why it is open where the interval alone does not say) of values [S] paired by seed. A
        pair with a NaN is left out; where one side has more of them than the other, who is left says nothing."""
        x, y = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        d = x - self.factor * y
        found = t_interval(d)
        missing = int(np.isnan(x).sum()), int(np.isnan(y).sum())
        if missing[0] != missing[1]:
            return Verdict.OPEN, found, f"no value in {missing[0]} runs of one side and {missing[1]} of the other"
        if found.n < LEAST:
            return Verdict.OPEN, found, f"{found.n} of {len(d)} pairs have a value: {LEAST} are needed"
        down = self.direction in ("down", "not higher")
        low, high = (-found.high, -found.low) if down else (found.low, found.high)  # as if larger were claimed
        if why := self._stuck(x, y, high):
            return Verdict.OPEN, found, why
        if self.direction.startswith("not "):
            holds, fails = low > -self.margin or low == high == 0, high < -self.margin
        else:
            holds, fails = low > 0, high <= self.margin
        return Verdict.HOLDS if holds else Verdict.FAILS if fails else Verdict.OPEN, found, ""

    def _stuck(self, x: np.ndarray, y: np.ndarray, high: float) -> str:
        """Why two arms cannot differ, if they cannot; `high`: the largest effect that there may be."""
        if not isinstance(self.against, str):
            return ""
        alike = int((x == y).sum())
        if self.direction in ("up", "down") and 2 * alike > len(x):
            return f"both sides are the same in {'every pair' if alike == len(x) else f'{alike} of {len(x)} pairs'}"
        if not self.range:
            return ""
        least, most = self.range
        near, mine, theirs = NEAR * (most - least), float(np.nanmean(x)), self.factor * float(np.nanmean(y))
        for end in self.range:
            if abs(mine - end) <= near and abs(theirs - end) <= near:
                return f"both arms sit at {end:g}"
        room = {"up": most - theirs, "down": theirs - least}.get(self.direction, np.inf)
        return f"{self.against} leaves {room:.2g} of the range" if room < max(self.margin, near) and high >= 0 else ""


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of several checks: all hold, or one does not hold, or it is open."""
    found = set(verdicts)
    if Verdict.FAILS in found:
        return Verdict.FAILS
    return Verdict.HOLDS if found == {Verdict.HOLDS} else Verdict.OPEN

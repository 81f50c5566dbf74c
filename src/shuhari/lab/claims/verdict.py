"""The rule: from paired values of two arms to the verdict of a claim's headline, and what stands beside it.

Four roles of a check: `premise` (of bed and baseline alone), `headline` (the paper's number against the paper's
baseline, whose verdict is the claim's), `guard` (what may not be lost for it), `because` (ablations: whether the
paper's reason is the reason). To *judge* is to get a verdict from numbers by a rule, to *join* is to make one verdict
of several. Axes: `S` seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import numpy as np

from shuhari.bounds import Bounds, check
from shuhari.data import Array, nearest
from shuhari.kernel.stats import t_interval

DIRECTIONS = ("up", "down", "not lower", "not higher", "equal")
ROLES = ("premise", "headline", "guard", "because")
LEAST = 5  # pairs; with fewer an interval says next to nothing
NEAR = 0.02  # of its range: a metric that both arms hold this close to an end cannot tell them apart


class Verdict(StrEnum):
    """Of a premise, a guard or an ablation."""

    HOLDS = "holds"
    FAILS = "fails"
    OPEN = "open"


class Headline(StrEnum):
    """Of a headline, and so of its claim."""

    HOLDS = "holds"
    COST = "holds at a cost"  # and the guard fails
    SMALL = "holds, small"  # an effect, of less than the margin
    REVERSED = "reversed"
    BELOW = "below margin"  # no effect was seen, and one of the margin would have been
    OPEN = "open"
    UNTESTED = "not tested"  # a premise fails


class Because(StrEnum):
    """Whether the paper's reason is the reason."""

    BY = "by its mechanism"
    NOT = "not by it"
    OPEN = "open"
    UNASKED = "not asked"


HELD = (Headline.HOLDS, Headline.COST, Headline.SMALL)


@dataclass(frozen=True)
class Effect:
    """A difference signed so that what is claimed is up, with its interval, of `n` pairs that have a value; `sd` of
    one pair's difference; `why`: what keeps it from telling anything, whatever the interval."""

    value: float
    low: float
    high: float
    n: int
    sd: float
    why: str = ""


@dataclass(frozen=True)
class Rule:
    """A rule for the difference of `arm`'s value and `factor` times that of `against` (an arm, or a number).

    role: what the check is for, one of ROLES. direction `up` or `down`: holds if the whole interval lies on that side
    of 0, of a premise beyond `margin`; otherwise fails if all of it falls short of `margin` (>= 0), the smallest effect
    that is worth claiming. `not lower`, `not higher`: holds if it lies on the right side of the tolerance `margin`,
    fails if it lies beyond. `equal`: holds if it lies within `margin` on both sides, fails if it lies outside. Else
    open. A headline has more verdicts: `judge_headline`.

    range: the ends of the values; if both arms sit at the same one, or `against` leaves no room for an effect of
    `margin`, nothing can be told (but that the effect is the other way). ratio: differences and the margin are shares
    of the value of `against`; if that is 0 in any pair the verdict is open, for dropping pairs would bias it.
    """

    direction: str = "up"
    margin: Annotated[float, Bounds(0, hint="the direction gives it its sign")] = 0.0
    arm: str = "method"
    against: str | float = "baseline"
    factor: float = 1.0
    range: tuple[float, ...] = ()
    role: str = field(kw_only=True)
    ratio: bool = False

    def __post_init__(self) -> None:
        check(self)
        if self.direction not in DIRECTIONS:
            near = nearest(self.direction, DIRECTIONS[:2])  # the others would turn the claim round
            raise ValueError(f"no direction {self.direction!r}; {near}; or 'not lower', 'not higher', 'equal'")
        if self.arm == self.against:
            raise ValueError(f"arm {self.arm!r} is compared with itself")
        if self.range and (len(self.range) != 2 or not self.range[0] < self.range[1]):
            raise ValueError(f"range is {list(self.range)}: expected [least, most]")
        if self.role not in ROLES:
            raise ValueError(f"no role {self.role!r}; {nearest(self.role, ROLES)}")
        one_sided = self.direction in ("up", "down")
        if self.role == "headline" and one_sided and not self.margin:
            raise ValueError("margin is missing: the smallest effect that would be worth claiming")
        if self.role == "headline" and self.factor != 1:
            why = "of a headline the whole of what it is compared with counts"
            raise ValueError(f"factor is {self.factor:g}: {why}; ratio = true makes the margin a share of it")
        if self.role == "guard" and one_sided:
            raise ValueError(f"a guard goes {self.direction!r}: expected 'not lower', 'not higher' or 'equal'")
        if self.role == "because" and not one_sided:
            raise ValueError(f"an ablation goes {self.direction!r}: expected 'up' or 'down'")
        if self.role == "premise" and self.arm == "method":
            raise ValueError("a premise is of bed and baseline alone: expected another arm than 'method'")

    @property
    def sides(self) -> tuple[str, ...]:
        """What is compared by its values: `arm`, and `against` where that is no number."""
        return (self.arm, self.against) if isinstance(self.against, str) else (self.arm,)

    def pick_sides(self, values: Mapping[str, Sequence[float]]) -> tuple[Sequence[float], Sequence[float]]:
        """([S] of `arm`, [S] of `against`) out of the values of each side."""
        ours = values[self.arm]
        return ours, values[self.against] if isinstance(self.against, str) else [float(self.against)] * len(ours)

    def estimate(self, ours: Sequence[float] | Array, theirs: Sequence[float] | Array, level: float = 0.95) -> Effect:
        """The effect in values [S] paired by seed, with its interval at `level`. A pair with a NaN is left out."""
        x, y = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        down = self.direction in ("down", "not higher")
        d = self._subtract(x, y) * (-1 if down else 1)
        found = t_interval(d, level)
        there = d[~np.isnan(d)]
        sd = float(there.std(ddof=1)) if len(there) > 1 else math.nan
        missing = int(np.isnan(x).sum()), int(np.isnan(y).sum())
        if missing[0] != missing[1]:
            why = f"no value in {missing[0]} runs of one side and {missing[1]} of the other"
        elif found.n < LEAST:
            why = f"{found.n} of {len(d)} pairs have a value: {LEAST} are needed"
        elif self.ratio and (none := int((y == 0).sum())):
            why = f"{self.against} is 0 in {none} of {len(d)} pairs, of which there is no share"
        else:
            why = "" if self.role == "premise" else self._explain_stuck(x, y, found.high)
        return Effect(found.value, found.low, found.high, found.n, sd, why)

    def _subtract(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """[S]; in shares of y where the rule is of a ratio, NaN where that is 0."""
        d = x - self.factor * y
        return np.divide(d, np.abs(y), out=np.full_like(d, math.nan), where=y != 0) if self.ratio else d

    def judge(self, effect: Effect) -> Verdict:
        """The verdict of a premise, a guard or an ablation, from its effect."""
        low, high, m = effect.low, effect.high, self.margin
        if effect.why:
            return Verdict.OPEN
        if self.direction == "equal":
            holds, fails = _is_within(low, high, m), low > m or high < -m
        elif self.direction.startswith("not "):
            holds, fails = low > -m or low == high == 0, high < -m
        elif self.role == "premise":
            holds, fails = low > m, high <= m
        else:
            holds, fails = low > 0, high <= m
        return Verdict.HOLDS if holds else Verdict.FAILS if fails else Verdict.OPEN

    def judge_headline(self, effect: Effect, detectable: float, guard: Verdict | None = None) -> Headline:
        """The verdict of a headline, of which `detectable` is the smallest effect that its seeds could find."""
        held = Headline.COST if guard is Verdict.FAILS else Headline.HOLDS
        if effect.why:
            return Headline.OPEN
        if self.direction not in ("up", "down"):
            found = {Verdict.HOLDS: held, Verdict.FAILS: Headline.REVERSED, Verdict.OPEN: Headline.OPEN}
            return found[self.judge(effect)]
        if effect.low > 0:
            return held if effect.high >= self.margin else Headline.SMALL
        if effect.high < 0:
            return Headline.REVERSED
        return Headline.BELOW if effect.high <= self.margin and detectable <= self.margin else Headline.OPEN

    def _explain_stuck(self, x: np.ndarray, y: np.ndarray, high: float) -> str:
        """Why two arms cannot differ, if they cannot; `high`: the largest effect that there may be."""
        if not isinstance(self.against, str):
            return ""
        alike = int((x == y).sum())
        if self.direction in ("up", "down") and 2 * alike > len(x):
            return f"both sides are the same in {'every pair' if alike == len(x) else f'{alike} of {len(x)} pairs'}"
        if not self.range:
            return ""
        low, most = self.range
        near, mine, theirs = NEAR * (most - low), float(np.nanmean(x)), self.factor * float(np.nanmean(y))
        for end in self.range:
            if abs(mine - end) <= near and abs(theirs - end) <= near:
                return f"both arms sit at {end:g}"
        room = {"up": most - theirs, "down": theirs - low}.get(self.direction, np.inf)
        least = max(self.margin * (abs(theirs) if self.ratio else 1.0), near)
        return f"{self.against} leaves {room:.2g} of the range" if room < least and high >= 0 else ""


def _is_within(low: float, high: float, margin: float) -> bool:
    """Whether an interval lies within a margin of 0, to a rounding."""
    rounding = 1e-12 * max(1.0, margin)
    return -margin - rounding <= low and high <= margin + rounding


def join_reasons(verdicts: Iterable[Verdict]) -> Because:
    """What several ablations say together: every one must say that the reason is the reason."""
    found = set(verdicts)
    if Verdict.FAILS in found:
        return Because.NOT
    return Because.UNASKED if not found else Because.BY if found == {Verdict.HOLDS} else Because.OPEN

"""The rule: from paired values of two arms to the verdict of a claim's headline and its other checks.

A check has one of six roles: `premise` (about bed and baseline alone), `headline` (the paper's number against the
paper's baseline), `rival` (the same number against another plain rival; the claim's verdict is the worst of headline
and rivals), `dose` (how much the method changes at all), `guard` (what must not get worse), `because` (ablations:
whether the effect comes from the paper's mechanism). To *judge* is to get a verdict from numbers by a rule, to *join*
is to combine several verdicts. Axes: `S` seeds.
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
DOWN = ("down", "not higher")  # a smaller value is the better one
ROLES = ("premise", "headline", "rival", "dose", "guard", "because")
LEAST = 5  # pairs; with fewer an interval is too wide to be useful
NEAR = 0.02  # of its range: if both arms are this close to the same end, the metric cannot separate them


class Verdict(StrEnum):
    """The verdict of a premise, a guard or an ablation."""

    HOLDS = "holds"
    FAILS = "fails"
    OPEN = "open"


class Headline(StrEnum):
    """The verdict of a headline, and so of its claim."""

    HOLDS = "holds"
    COST = "holds at a cost"  # but the guard fails
    SMALL = "holds, small"  # an effect below the margin
    REVERSED = "reversed"
    LESS = "reversed, small"  # the other way, by less than the margin
    BELOW = "below margin"  # no effect found, and one of the margin would have been
    OPEN = "open"
    UNTESTED = "not tested"  # a premise fails


class Because(StrEnum):
    """Whether the effect comes from the paper's mechanism."""

    BY = "by its mechanism"
    NOT = "not by it"
    OPEN = "open"
    UNASKED = "not asked"


HELD = (Headline.HOLDS, Headline.COST, Headline.SMALL)
# from the worst to the best: the verdict of a claim is the worst of its comparisons
WORST = (Headline.UNTESTED, Headline.REVERSED, Headline.LESS, Headline.BELOW, Headline.OPEN, Headline.SMALL,
         Headline.COST, Headline.HOLDS)  # fmt: skip


@dataclass(frozen=True)
class Effect:
    """A difference, signed so that the claimed direction is positive, with its interval, over `n` pairs that have a
    value. `sd`: of one pair's difference. `why`: why it is inconclusive whatever the interval; "" if it is not."""

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
    of 0 (for a premise, beyond `margin`); fails if not, and all of it falls short of `margin` (>= 0), the smallest
    effect worth claiming. `not lower`, `not higher`: holds if the interval lies on the right side of the tolerance
    `margin`, fails if it lies beyond. `equal`: holds if it lies within `margin` on both sides, fails if it lies
    outside. Otherwise open. A headline has more verdicts: `judge_headline`.

    range: the ends of the values. If both arms are at the same end, or `against` leaves no room for an effect of
    `margin`, the check is open (unless the effect is reversed). ratio: differences and the margin are shares of the
    value of `against`; if that is 0 in any pair the verdict is open, for dropping pairs would bias it.
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
            near = nearest(self.direction, DIRECTIONS[:2])  # the others would reverse the claim
            raise ValueError(f"direction is {self.direction!r}; {near}; or 'not lower', 'not higher', 'equal'")
        if self.arm == self.against:
            raise ValueError(f"arm {self.arm!r} is compared with itself")
        if self.range and (len(self.range) != 2 or not self.range[0] < self.range[1]):
            raise ValueError(f"range is {list(self.range)}: expected [least, most]")
        if self.role not in ROLES:
            raise ValueError(f"expected a role of a check, got {self.role!r}; {nearest(self.role, ROLES)}")
        one_sided = self.direction in ("up", "down")
        if self.role in ("headline", "rival") and one_sided and not self.margin:
            raise ValueError("margin is missing: the smallest effect that would be worth claiming")
        if self.role == "headline" and self.factor != 1:
            why = "a headline is compared with the whole value of the other arm: expected 1"
            raise ValueError(f"factor is {self.factor:g}: {why}; ratio = true makes the margin a share of it")
        if self.role == "guard" and one_sided:
            raise ValueError(f"direction is {self.direction!r}, and the check is a guard: expected 'not lower', 'not "
                             "higher' or 'equal'")  # fmt: skip
        if self.role == "because" and not one_sided:
            raise ValueError(f"direction is {self.direction!r}, and the check is an ablation: expected 'up' or 'down'")
        if self.role == "dose" and (self.direction != "up" or isinstance(self.against, str) or self.margin):
            raise ValueError("a dose is compared with a floor: expected direction = 'up', a number as against, and no "
                             "margin")  # fmt: skip
        if self.role == "premise" and self.arm == "method":
            raise ValueError("arm is 'method', and the check is a premise, which is about the bed and the baseline: "
                             "expected another")  # fmt: skip

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides that are compared by values: `arm`, and `against` if it is not a number."""
        return (self.arm, self.against) if isinstance(self.against, str) else (self.arm,)

    def pick_sides(self, values: Mapping[str, Sequence[float]]) -> tuple[Sequence[float], Sequence[float]]:
        """Return ([S] of `arm`, [S] of `against`) from the values of each side."""
        ours = values[self.arm]
        return ours, values[self.against] if isinstance(self.against, str) else [float(self.against)] * len(ours)

    def estimate(
        self,
        ours: Sequence[float] | Array,
        theirs: Sequence[float] | Array,
        level: float = 0.95,
        solvable: bool = False,
    ) -> Effect:
        """Estimate the effect from values [S] paired by seed, with its interval at `level`. Pairs with a NaN are left
        out. solvable: whether another arm is known to reach the claimed effect on this bed; then two arms at the end of
        the range from which the effect leads away are a finding, not a bed without room."""
        x, y = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        down = self.direction in DOWN
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
            why = "" if self.role in ("premise", "dose") else self._explain_stuck(x, y, found.high, solvable)
        return Effect(found.value, found.low, found.high, found.n, sd, why)

    def _subtract(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return [S] differences; as shares of y if `ratio`, NaN where y is 0."""
        d = x - self.factor * y
        return np.divide(d, np.abs(y), out=np.full_like(d, math.nan), where=y != 0) if self.ratio else d

    def judge(self, effect: Effect) -> Verdict:
        """Judge a premise, a guard or an ablation by its effect."""
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
        """Judge a headline or a rival. `detectable`: the smallest effect that its seeds could find. An effect whose
        guard is open does not hold."""
        held = {Verdict.FAILS: Headline.COST, Verdict.OPEN: Headline.OPEN}.get(guard or Verdict.HOLDS, Headline.HOLDS)
        if effect.why:
            return Headline.OPEN
        if self.direction not in ("up", "down"):
            found = {Verdict.HOLDS: held, Verdict.FAILS: Headline.REVERSED, Verdict.OPEN: Headline.OPEN}
            return found[self.judge(effect)]
        if effect.low > 0:
            small = effect.high < self.margin and guard is not Verdict.OPEN
            return Headline.SMALL if small else held
        if effect.high < 0:
            return Headline.LESS if effect.low > -self.margin else Headline.REVERSED
        return Headline.BELOW if effect.high <= self.margin and detectable <= self.margin else Headline.OPEN

    def _explain_stuck(self, x: np.ndarray, y: np.ndarray, high: float, solvable: bool) -> str:
        """Return why two arms cannot differ, or "". `high`: the upper end of the effect's interval."""
        if not isinstance(self.against, str):
            return ""
        alike = int((x == y).sum())
        if self.direction in ("up", "down") and 2 * alike > len(x):
            return f"both sides are the same in {'every pair' if alike == len(x) else f'{alike} of {len(x)} pairs'}"
        if not self.range:
            return ""
        low, most = self.range
        near, mine, theirs = NEAR * (most - low), float(np.nanmean(x)), self.factor * float(np.nanmean(y))
        start = {"up": low, "down": most}.get(self.direction)  # the end from which the effect would lead away
        for end in self.range:
            informative = high < 0 or (solvable and end == start)
            if abs(mine - end) <= near and abs(theirs - end) <= near and not informative:
                return f"both arms sit at {end:g}"
        room = {"up": most - theirs, "down": theirs - low}.get(self.direction, np.inf)
        least = max(self.margin * (abs(theirs) if self.ratio else 1.0), near)
        return f"{self.against} leaves {room:.2g} of the range" if room < least and high >= 0 else ""


def join_comparisons(words: Iterable[Headline]) -> Headline:
    """Return the worst of the verdicts of a headline and its rivals. No correction for several comparisons is needed:
    all must hold for the claim to hold."""
    return min(words, key=WORST.index)


def _is_within(low: float, high: float, margin: float) -> bool:
    """Whether an interval lies within a margin of 0, up to rounding."""
    rounding = 1e-12 * max(1.0, margin)
    return -margin - rounding <= low and high <= margin + rounding


def join_reasons(verdicts: Iterable[Verdict]) -> Because:
    """Join the verdicts of several ablations: all must hold for the mechanism to be confirmed."""
    found = set(verdicts)
    if Verdict.FAILS in found:
        return Because.NOT
    return Because.UNASKED if not found else Because.BY if found == {Verdict.HOLDS} else Because.OPEN

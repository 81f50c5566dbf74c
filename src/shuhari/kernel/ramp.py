"""Schedules: a number that moves with a count (steps of a stage, decisions of a sample)."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import Any, TypeAlias

import numpy as np


class Count(float):
    """The steps of a stage so far, as a number; `spent` of the `whole` budget of the stage, in steps if `in_steps`."""

    def __new__(cls, steps: float, spent: float, whole: float, *, in_steps: bool) -> Count:
        made = super().__new__(cls, steps)
        made.spent, made.whole, made.in_steps = float(spent), float(whole), in_steps
        return made

    spent: float
    whole: float
    in_steps: bool


SHAPES = ("linear", "cosine", "exponential")


@dataclass(frozen=True)
class Ramp:
    """A number that moves from `start` to `to` over `over` counts, after `after` counts at `start`.

    It may replace any number: over decisions (`Sampling.temperature`) or over the steps of a stage (any number of a
    recipe, there written `{from = 1.0, to = 0.1}`). Without `over` it ends with the stage; `over` and `after` from 1 on
    are counts, below 1 shares of the stage's budget (rounded to whole steps if the budget is in steps; in another unit
    both are shares, or neither). `warm` counts climb from 0 first; it is a share only if the budget is in steps.
    `shape`: `linear`, `cosine`, or `exponential` (the same factor each count: both ends of one sign and not 0). `steps`
    in place of `to`, `over`, `after` and `shape`: pairs (count, value); from each count on the number is that value
    (`{from = 1.0, steps = [[50, 0.5]]}`). `period` > 0, in counts as `over` then is: all but `warm` begins again.
    """

    start: float
    to: float | None = None
    over: float | None = None
    after: float = 0.0
    warm: float = 0.0
    shape: str = "linear"
    steps: tuple[tuple[float, float], ...] = ()
    period: float = 0.0

    def __post_init__(self) -> None:
        if self.over is not None and not 0 < self.over < float("inf"):
            raise ValueError(f"a schedule's `over` is {self.over}: expected a number above 0")
        for name in ("after", "warm"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"a schedule's `{name}` is {getattr(self, name)}: expected a number of 0 "
                                 f"or more (`shuhari components {name}` explains it)")  # fmt: skip
        if self.shape not in SHAPES:
            near = get_close_matches(self.shape, SHAPES, 1)
            raise ValueError(f"a schedule's `shape` is {self.shape!r}: did you mean {(near or SHAPES)[0]!r}?")
        if not 0 <= self.period < float("inf") or (self.period and self.relative):
            raise ValueError(f"a schedule's `period` is {self.period}: expected 0 (off) or, with `over` of 1 or more, "
                             "a number of steps (of decisions if per = 'decision')")  # fmt: skip
        if self.steps:
            if (counts := [at for at, _ in self.steps]) != sorted(set(counts)):
                raise ValueError(f"a schedule's `steps` are at {counts}: expected ascending numbers")
            if (self.to, self.over, self.after, self.shape) != (None, None, 0.0, "linear"):
                found = {k: getattr(self, k) for k in ("to", "over", "after", "shape")}
                raise ValueError("a schedule's `steps` replace `to`, `over`, `after` and `shape`: expected none of "
                                 f"these, got {found}")  # fmt: skip
            if 0 < self.warm < 1:
                raise ValueError(f"a schedule's `warm` is {self.warm}: expected 0, or 1 or more, as `steps` are no "
                                 "shares")  # fmt: skip
        numbers = [
            self.start,
            *(
                v
                for pair in self.steps
                for v in pair
            ),
            *(() if self.steps else (self.to,)),
        ]
        if any(x is None or not isfinite(x) for x in numbers):
            raise ValueError(f"a schedule goes from {self.start} to {self.steps or self.to}: expected finite numbers")
        if self.shape == "exponential" and not self.start * (self.to or 0.0) > 0:
            raise ValueError(f"an exponential schedule from {self.start} to {self.to}: expected one sign, and not 0")

    @property
    def ends(self) -> tuple[float, ...]:
        """The values that it goes between, but for the 0 that `warm` begins with."""
        return (self.start, *(v for _, v in self.steps), *(() if self.to is None else (self.to,)))

    @property
    def relative(self) -> bool:
        """Whether it is over a part of a stage, and so needs one."""
        if self.steps:
            return False
        return self.over is None or self.over < 1 or 0 < self.after < 1 or 0 < self.warm < 1

    def check(self, *, in_steps: bool) -> None:
        """Raise ValueError if the ramp mixes shares and counts in a way that is undefined for a budget not
        `in_steps`."""
        if in_steps or not self.relative:
            return
        if 0 < self.warm < 1:
            raise ValueError(f"a schedule's `warm` is {self.warm}: expected steps, as the budget is not in steps")
        if self.after >= 1 and (self.over is None or self.over < 1):
            raise ValueError(f"a schedule's `after` is {self.after}: expected a share below 1, or `over` in steps "
                             "too, as the budget is not in steps")  # fmt: skip
        if self.over is not None and self.over >= 1 and 0 < self.after < 1:
            raise ValueError(f"a schedule's `over` is {self.over}: expected a share below 1, or `after` in steps too, "
                             "as the budget is not in steps")  # fmt: skip

    def __call__(self, at: Any) -> Any:
        """Return the value at count `at`: a number, an array of them, or the `Count` of a stage, which a ramp over a
        part of a stage needs (else ValueError)."""
        over, after, warm, along = self.over, self.after, self.warm, at
        if self.relative:
            if not isinstance(at, Count):
                raise ValueError(f"{self} is in shares of a stage, and there is no stage here: expected `over` of 1 "
                                 "or more")  # fmt: skip
            self.check(in_steps=at.in_steps)
            after, warm = _to_counts(after, at), _to_counts(warm, at)
            over = max(1.0, at.whole - after if over is None else _to_counts(over, at))
            along = float(at) if at.in_steps else at.spent
        x = np.asarray(along, np.float64)
        x = x % self.period if self.period else x
        if self.steps:
            places = np.searchsorted([count for count, _ in self.steps], x, side="right")
            y = np.asarray((self.start, *(value for _, value in self.steps)))[places]
        else:
            assert over is not None and self.to is not None
            x = np.clip((x - after) / over, 0.0, 1.0)
            x = (1 - np.cos(np.pi * x)) / 2 if self.shape == "cosine" else x
            y = self.start + (self.to - self.start) * x
            y = self.start * (self.to / self.start) ** x if self.shape == "exponential" else y
        y = y * np.minimum(1.0, (np.asarray(at, np.float64) + 1) / warm) if warm else y
        return y if np.ndim(at) else float(y)


def _to_counts(x: float, at: Count) -> float:
    """Convert a share of a stage to the unit of its budget; a count stays as it is."""
    if x == 0 or x >= 1:
        return x
    return float(round(x * at.whole)) if at.in_steps else x * at.whole


Number: TypeAlias = float | Ramp

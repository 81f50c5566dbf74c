"""Curves of runs, and scalar readings of them: `evaluate/mean:final`, `rollout/length:last=5`, `score:to=0.6`.

Axes: a curve is points (x, y), with x the part of the claim's budget spent since the warm start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shuhari.data import nearest

Columns = Mapping[str, Sequence[Any]]  # metric -> one value a step, None if the step has none
Curve = tuple[np.ndarray, np.ndarray]
PLAIN = ("final", "first", "best", "worst", "mean", "area")
GIVEN = ("last", "over", "to", "at")
_OTHER = re.compile(r"(?P<name>.+?)(?P<sign>>=|<=)(?P<value>[^=<>]+)")


@dataclass(frozen=True)
class Reading:
    """A metric and a statistic of its curve.

    `final`, `first`, `best` (largest value), `worst` (smallest), `mean` (of all reports), `last=K` (mean of the last
    K), `area` (mean over the budget, by the trapezoid rule), `over=V` (area of max(y - V, 0)), `to=V` (budget spent
    until the curve first reaches V, interpolated; all of it if it never does), `at=OTHER>=V` (value when OTHER first
    reaches V; NaN if it never does). A curve is read up to the end of the budget, and interpolated there. Reports of
    NaN are skipped; if the last report is NaN, so are `final`, `last`, `mean`, `area` and `over`.
    """

    metric: str
    what: str = "final"
    value: float = math.nan
    other: str = ""
    sign: str = ">="

    @classmethod
    def of(cls, text: str) -> Reading:
        """Parse `metric:what`. Raises ValueError with the nearest valid reading."""
        metric, colon, what = text.rpartition(":")
        if not colon:
            metric, what = what, "final"
        name, given, value = what.partition("=")
        if not given:
            if what not in PLAIN:
                raise ValueError(f"{text!r}: no reading {what!r} of a curve; {nearest(what, (*PLAIN, *GIVEN))}")
            return cls(metric, what)
        if name == "at":
            found = _OTHER.fullmatch(value)
            if found is None:
                raise ValueError(f"{text!r}: expected metric:at=other>=value, such as length:at=evaluate/mean>=0.6")
            return cls(metric, name, _read_number(found["value"], text), found["name"], found["sign"])
        if name not in GIVEN:
            raise ValueError(f"{text!r}: no reading {name!r} of a curve; {nearest(name, (*PLAIN, *GIVEN))}")
        number = _read_number(value, text)
        if name == "last" and (number < 1 or number != int(number)):
            raise ValueError(f"{text!r}: expected last= a whole number of reports, at least 1")
        return cls(metric, name, number)

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that are read."""
        return (self.metric, self.other) if self.other else (self.metric,)

    def __call__(
        self, columns: Columns, spent: Sequence[float], start: Mapping[str, float], whole: float, began: float = 0.0
    ) -> float:
        """Return the reading. `columns`: of a run; `spent`: [steps] of the budget; `start`: the scores when the last
        stage began, at `began` spent; `whole`: the budget. Raises KeyError if the run lacks the metric."""
        x, y = cut(whole, *read_curve(columns, self.metric, spent, start, began))
        if self.what in ("final", "last", "mean", "area", "over") and not np.isfinite(y[-1]):
            return math.nan
        x, y = x[np.isfinite(y)], y[np.isfinite(y)]
        if not len(x):
            return math.nan
        if self.what == "last":
            return float(y[-int(self.value) :].mean())
        if self.what == "over":
            y = np.maximum(y - self.value, 0.0)
        if self.what in ("area", "over"):
            return float(np.trapezoid(y, x) / (x[-1] - x[0])) if len(x) > 1 and x[-1] > x[0] else float(y[-1])
        if self.what == "to":
            return find_crossing(x, y, self.value, whole)
        if self.what == "at":
            ox, oy = cut(whole, *read_curve(columns, self.other, spent, start, began))
            reached = np.flatnonzero(oy >= self.value if self.sign == ">=" else oy <= self.value)
            return float(np.interp(ox[reached[0]], x, y)) if len(reached) else math.nan
        return float({"final": y[-1], "first": y[0], "best": y.max(), "worst": y.min(), "mean": y.mean()}[self.what])


def read_curve(
    columns: Columns, metric: str, spent: Sequence[float], start: Mapping[str, float] = {}, began: float = 0.0
) -> Curve:
    """Return (x, y) of a metric at the steps that reported it. An evaluated metric also gets its score at the `start`
    of the last stage, at x = `began`, unless there is a point already."""
    if metric not in columns:
        family = [n for n in columns if n.partition("/")[0] == metric.partition("/")[0]]
        there = f"; there are {', '.join(family[:12])}" if family else ""
        raise KeyError(f"no metric {metric!r} in the run; {nearest(metric, columns)}{there}")
    points = [(s, v) for s, v in zip(spent, columns[metric], strict=True) if isinstance(v, int | float)]
    first = start.get(metric.removeprefix("evaluate/")) if metric.startswith("evaluate/") else None
    if first is not None and first == first and began not in [x for x, _ in points]:
        points = sorted([*points, (began, first)], key=lambda p: p[0])
    if not points:
        raise KeyError(f"the run has no value of {metric!r}")
    return (
        np.array([p[0] for p in points], np.float64),
        np.array([p[1] for p in points], np.float64),
    )


def cut(whole: float, x: np.ndarray, y: np.ndarray) -> Curve:
    """Cut a curve at `whole`, adding the interpolated point there."""
    inside = x <= whole
    if inside.all() or not inside.any():
        return x, y
    i = int(inside.sum())
    return np.append(x[:i], whole), np.append(y[:i], np.interp(whole, x[i - 1 : i + 1], y[i - 1 : i + 1]))


def find_crossing(x: np.ndarray, y: np.ndarray, value: float, never: float) -> float:
    """Return where a curve first reaches `value` from below, interpolated; `never` if it does not."""
    reached = np.flatnonzero(y >= value)
    if not len(reached):
        return float(never)
    i = int(reached[0])
    if i == 0 or y[i] == y[i - 1]:
        return float(x[i])
    return float(x[i - 1] + (x[i] - x[i - 1]) * (value - y[i - 1]) / (y[i] - y[i - 1]))


def _read_number(text: str, whole: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{whole!r}: {text!r} is not a number") from None

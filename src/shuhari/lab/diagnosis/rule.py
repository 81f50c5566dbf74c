"""A rule: which number of a stage indicates a problem, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from shuhari.lab.diagnosis.evidence import Evidence

Statistic = Callable[[Evidence, str], float]


def always(e: Evidence) -> bool:
    """always"""
    return True


def _nothing(e: Evidence, name: str) -> str:
    return ""


@dataclass(frozen=True)
class Rule:
    """A rule that finds a problem if `number`, a statistic of a metric matching `reads`, lies outside the range
    `healthy` (ends included). `cause` is the likely reason and `helps` what to change, as text.

    `least`: the fewest steps of a stage, which must also fulfil `when`. `at_once`: also an alarm about the first steps
    while the run trains. `covers`: rules that are hidden if this one finds something, because they show less of the
    same problem. `tells`: a further sentence about a metric. `unpaid`: no answer earns more than others, so that the
    stored answers may show why."""

    name: str
    reads: str
    number: Statistic
    healthy: tuple[float, float]
    cause: str
    helps: str
    least: int = 1
    when: Callable[[Evidence], bool] = always
    at_once: bool = False
    covers: tuple[str, ...] = ()
    tells: Callable[[Evidence, str], str] = _nothing
    unpaid: bool = False

    def find(self, e: Evidence) -> tuple[str, float] | None:
        """Return (metric, number) of the metric furthest outside the range; None if there is none, or it is unknown."""
        if len(e) < self.least or not (names := e.find(self.reads)) or not self.when(e):
            return None
        found = [(name, x) for name in names if not math.isnan(x := self.number(e, name)) and self._excess(x) > 0]
        return max(found, key=lambda pair: self._excess(pair[1]), default=None)

    def _excess(self, x: float) -> float:
        low, high = self.healthy
        return max(low - x, x - high)

    def describe_range(self) -> str:
        """Return the healthy range as text."""
        low, high = self.healthy
        if low == high:
            return f"{low:g}"
        if 0 < low < 1e-6:
            return "above 0"
        if 0 < 1 - high < 1e-6:
            return "below 1"
        if low == -math.inf:
            return f"at most {high:g}"
        return f"at least {low:g}" if high == math.inf else f"{low:g} to {high:g}"

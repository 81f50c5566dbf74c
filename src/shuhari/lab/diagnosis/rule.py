"""A rule: which number of a stage says that something is wrong, and what to do then."""

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
    """`number`, a statistic of a metric that `reads` names, lies outside of the range `healthy` (both ends belong to
    it): then `cause` is the likely reason and `helps` what to change, in words and settings.

    `least`: from so many steps of a stage on, where `when` holds. `at_once`: also raised while the run trains, of its
    first steps. `covers`: rules that need not be shown where this one is, as they say less of the same. `tells`: a
    further sentence about what was found in a metric. `unpaid`: no answer earns more than others, so that answers that
    the run has kept may show why."""

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
        """(metric, number) of the worst metric that lies outside of the range; None where all is well or unknown."""
        if len(e) < self.least or not (names := e.find(self.reads)) or not self.when(e):
            return None
        found = [(name, x) for name in names if not math.isnan(x := self.number(e, name)) and self._excess(x) > 0]
        return max(found, key=lambda pair: self._excess(pair[1]), default=None)

    def _excess(self, x: float) -> float:
        low, high = self.healthy
        return max(low - x, x - high)

    def describe_range(self) -> str:
        """The healthy range in words."""
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

"""`stop_when` of a recipe: a condition on the reported numbers, at which a stage ends before its budget is spent.

    metric op number            `evaluate/greedy >= 200`; op: >=, <=, > or <
    metric not better for n     n readings in a row, none above the best before; `not lower for n`: none below the least

It is parsed by these two patterns and by nothing else. A reading is a step that reports the metric: for `evaluate/..`,
an evaluation. Left out: several conditions at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from shuhari.config.overlay import RecipeError
from shuhari.data import EMPTY, nearest

FORMS = "'evaluate/greedy >= 200' (or <=, >, <), or 'evaluate/greedy not better for 5' (or not lower)"
_LIMIT = re.compile(r"\s*([^\s<>=]+)\s*(>=|<=|>|<)\s*([^\s<>=]+)\s*")
_PATIENCE = re.compile(r"\s*([^\s<>=]+)\s+not\s+(better|lower)\s+for\s+(\d{1,9})\s*", re.ASCII)
PLAYED = "evaluate/"
SHORT = MappingProxyType({  # words for a metric, which is none itself -> the metric that they mean
    **dict.fromkeys(("greedy", "held-out", "score", "accuracy"), "evaluate/greedy"),
    "mean": "evaluate/mean", "reward": "reward/mean", "return": "rollout/return",
})  # fmt: skip


@dataclass(frozen=True)
class StopWhen:
    """A condition on a metric. `metric`: the number that it reads; `op` and `number`: its limit; or, for `better` and
    `lower`, after how many readings without a better one."""

    text: str
    metric: str
    op: str
    number: float

    def ask(self, report: Mapping[str, Any], seen: dict[str, Any]) -> str:
        """Return why the stage ends with this report; "" if it continues. `seen`: a record of earlier reports, kept
        between calls: `best` and how many readings `since`. A report without the number, or with NaN, is ignored."""
        value = report.get(self.metric)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            return ""
        value = float(value)
        if self.op not in ("better", "lower"):
            met = {">=": value >= self.number, "<=": value <= self.number, ">": value > self.number,
                   "<": value < self.number}[self.op]  # fmt: skip
            return f"{self.metric} is {value:.6g} ({self.text})" if met else ""
        if "best" not in seen or (value > seen["best"] if self.op == "better" else value < seen["best"]):
            seen |= {"best": value, "since": 0}
            return ""
        seen["since"] += 1
        best = f"{self.metric} is {value:.6g}, and was {seen['best']:.6g} at best, {seen['since']} readings ago"
        return f"{best} ({self.text})" if seen["since"] >= self.number else ""

    def explain_missing(self, known: Iterable[str]) -> str:
        """Return a message if no report so far has the metric, and these are the known numbers."""
        return f"no metric {self.metric!r} is reported; {nearest(self.metric, known)}"


def read_stop(text: object, evaluate: Mapping[str, Any] = EMPTY) -> StopWhen | None:
    """Return the condition of a stage; None for "". `evaluate`: the table of its evaluation. RecipeError for another
    form, and for a held-out number that is measured only at the beginning and the end."""
    if not isinstance(text, str):
        raise RecipeError("stop_when", f"{text!r}: expected {FORMS}")
    if not text.strip():
        return None
    if found := _LIMIT.fullmatch(text):
        metric, op, number = found.groups()
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if not math.isfinite(limit):
            raise RecipeError("stop_when", f"{text!r}: {number!r} is not a number; expected {FORMS}")
    elif found := _PATIENCE.fullmatch(text):
        metric, op, limit = found[1], found[2], float(found[3])
        if limit < 1:
            raise RecipeError("stop_when", f"{text!r}: expected 1 reading or more")
    else:
        raise RecipeError("stop_when", f"{text!r}: expected {FORMS}")
    if metric in SHORT:
        raise RecipeError("stop_when", f"no metric is called {metric!r}: did you mean {SHORT[metric]!r}?")
    if metric.startswith(PLAYED) and not evaluate.get("every"):
        message = "is measured at the ends alone: set evaluate.every to a number of steps, or, of one stage alone, "
        message += "stage.<name>.stop_when"
        raise RecipeError("stop_when", f"{metric} {message}")
    return StopWhen(" ".join(text.split()), metric, op, limit)

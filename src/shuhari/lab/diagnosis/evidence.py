"""The numbers of one stage of a run, and the statistics of them that rules use.

A statistic maps the evidence and the name of a metric to one number, NaN if it is undefined. Steps without a value are
skipped, and so are values that are not finite, except by `share_not_finite`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from shuhari.data import EMPTY, Array
from shuhari.kernel.registry import find, names
from shuhari.ports.hooks import ability

RECENT = 50  # the most steps that count as the last ones


@dataclass(frozen=True)
class Evidence:
    """The steps of one stage: `columns` as in `Run.metrics`, its resolved `table` of the recipe, the ledger
    (`spent/...`) `before` the stage, and its held-out scores in [0, 1] when it `began`: {"scores": name -> score,
    "problems": name -> number of problems averaged}."""

    stage: str
    columns: Mapping[str, Sequence[Any]]
    table: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, float] = EMPTY
    began: Mapping[str, Any] = EMPTY

    def __len__(self) -> int:
        return len(self.columns.get("step", ()))

    def find(self, pattern: str) -> list[str]:
        """Return the metrics that match a pattern such as `*/lr` and have a value; not those of a single task."""
        return [n for n, v in self.columns.items() if "@" not in n and fnmatchcase(n, pattern) and self._has(v)]

    def values(self, name: str) -> Array:
        """Return the values of a metric at the steps that have one."""
        return np.array([v for v in self.columns.get(name, ()) if isinstance(v, int | float)], np.float64)

    def finite(self, name: str) -> Array:
        """Return the finite values of a metric."""
        x = self.values(name)
        return x[np.isfinite(x)]

    def spent(self, what: str) -> float:
        """Return what the stage has spent of something, such as `env_steps`."""
        x = self.finite(f"spent/{what}")
        return float(x[-1] - self.before.get(f"spent/{what}", 0.0)) if len(x) else 0.0

    @property
    def trains_score(self) -> bool:
        """Whether the task's own score has a weight in the trained reward."""
        return "score" in self.trained

    @property
    def trained(self) -> list[str]:
        """The names with a weight in the trained reward; `score` and `task` by default."""
        reward = self.table.get("reward") or EMPTY
        return list_trained(reward) or ([] if reward.get("weights") else ["score", "task"])

    @property
    def writes_text(self) -> bool:
        """Whether the stage samples tokens."""
        return self.spent("tokens") > 0

    @staticmethod
    def _has(values: Sequence[Any]) -> bool:
        return any(isinstance(v, int | float) for v in values)


def list_trained(reward: Mapping[str, Any]) -> list[str]:
    """Return the names with a weight in a recipe's `reward` table, if graders or weights replace the task's own
    measure; empty if that is trained. Rewards of weight 0, or of a schedule from 0 to 0, are only monitored and left
    out."""
    beside = reward.get("beside") or EMPTY
    if (weights := reward.get("weights")) is not None:
        return [name for name, weight in weights.items() if _weighs(weight)]
    graders = {k: v for k, v in reward.items() if k not in ("weights", "beside", *beside)}
    return [name for name, one in graders.items() if _counts(str(one.get("use", name)))]


def _weighs(weight: Any) -> bool:
    """Whether a weight, a number or the table of a schedule, is ever nonzero."""
    return any(weight.get(end, 0) != 0 for end in ("from", "to")) if isinstance(weight, Mapping) else weight != 0


def _counts(use: str) -> bool:
    """Whether a grader replaces the task's own measure. A user's grader does; its code is not loaded."""
    return use not in names("reward") or ability(find("reward", use), "counts")


def recent(e: Evidence, name: str) -> float:
    """the mean of the last quarter of the steps"""
    return _mean(_last(e.finite(name)))


def first(e: Evidence, name: str) -> float:
    """the value of the first step"""
    x = e.finite(name)
    return float(x[0]) if len(x) else float("nan")


def growth(e: Evidence, name: str) -> float:
    """the mean of the last quarter of the steps over that of the first"""
    x = e.finite(name)
    begin = _mean(x[: max(1, len(x) // 4)])
    return recent(e, name) / begin if begin > 0 else float("nan")


def spread(e: Evidence, name: str) -> float:
    """the largest value less the smallest"""
    x = e.finite(name)
    return float(x.max() - x.min()) if len(x) else float("nan")


def highest(e: Evidence, name: str) -> float:
    """the largest value"""
    x = e.finite(name)
    return float(x.max()) if len(x) else float("nan")


def lowest(e: Evidence, name: str) -> float:
    """the smallest value"""
    x = e.finite(name)
    return float(x.min()) if len(x) else float("nan")


def upper_decile(e: Evidence, name: str) -> float:
    """the value that one step in ten exceeds"""
    x = e.finite(name)
    return float(np.quantile(x, 0.9)) if len(x) else float("nan")


def share_not_finite(e: Evidence, name: str) -> float:
    """the share of steps at which it is NaN or infinite"""
    x = e.values(name)
    return float((~np.isfinite(x)).mean()) if len(x) else float("nan")


def spent_per_episode(e: Evidence, name: str) -> float:
    """how much of it was spent for an episode"""
    x = e.finite("rollout/episodes")
    return e.spent(name.removeprefix("spent/")) / float(x.sum()) if len(x) and x.sum() > 0 else float("nan")


def spent_in_stage(e: Evidence, name: str) -> float:
    """how much of it the stage has spent"""
    return e.spent(name.removeprefix("spent/"))


def _last(x: Array) -> Array:
    return x[-max(1, min(RECENT, len(x) // 4)) :]


def _mean(x: Array) -> float:
    return float(x.mean()) if len(x) else float("nan")

"""What `shuhari reproduce` measures again: published numbers, with their protocol, and when a mean of ours has reached
one.

A source with seeds is reached by a mean of at least its mean less two standard errors of the difference, if these are
at most a quarter of it: wider ones would pass what has lost a quarter. A mean that lies as far above has reached it by
other means than the source's. A source of one run, of another version of the environment, or of longer runs, is shown
beside ours without a mark, and so is ours if a run of it diverged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shuhari.config.recipe import Recipe, load

ERRORS = 2.0  # standard errors of the difference by which a mean may lie below a published one
WIDEST = 0.25  # of the published mean, that these may be
REACHED, ABOVE, MISSED, WIDE = "reached", "above", "missed", "too wide"
BESIDE, OTHER, DIVERGED = "one run there", "other version", "diverged"


@dataclass(frozen=True)
class Published:
    """A published number: the `mean` over `seeds` runs and the `deviation` that the source prints (None if there was
    one run), whose square is their mean square less `ddof` runs, who it is `by`, its `source` (a URL), the environment
    (`env`) that it was measured in, the `simulator` there, and the `budget` of a run there in words, such as "10M
    steps", if ours is another."""

    by: str
    mean: float
    source: str
    env: str
    seeds: int = 1
    deviation: float | None = None
    budget: str = ""
    ddof: int = 1
    simulator: str = ""

    @property
    def spread(self) -> float | None:
        """The standard deviation of one run, estimated from `deviation`; None if there was one run."""
        if self.deviation is None or self.seeds < 2:
            return None
        return self.deviation * math.sqrt((self.seeds - self.ddof) / (self.seeds - 1))


@dataclass(frozen=True)
class Target:
    """A protocol and its published numbers, as described in `published.toml`; on recorded data also their
    name (`of`) and file (`data`), where that is had (`source`), whether rewards are multiplied so that its returns span
    1,000 (`scaled`), and the `folder` that it is in."""

    name: str
    recipe: str
    metric: str
    protocol: str
    seeds: int
    minutes: float
    published: tuple[Published, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs: str = ""
    of: str = ""
    data: str = ""
    source: str = ""
    scaled: bool = False
    folder: str = "data"

    @property
    def env(self) -> str:
        """The id of the environment that is run."""
        return str(self.load(0).tree["task"]["name"]).removeprefix("gym/")

    def load(self, seed: int) -> Recipe:
        """Return the recipe of one run; on recorded data, of a run with the file where the recipe looks for it, and
        rewards as they are."""
        return load(self.recipe).with_settings({**self.settings, "seed": seed})


def judge(values: Sequence[float], env: str, one: Published, diverged: int = 0) -> str:
    """Whether the mean of `values`, one a seed, reaches a published number: REACHED, ABOVE or MISSED, or WIDE if the
    seeds differ too much to tell; OTHER if it is of another environment than `env`, its budget if that is another,
    BESIDE if it has no spread over seeds, DIVERGED if seeds of ours have no value; "" for fewer than two values."""
    if env != one.env:
        return OTHER
    if one.budget:
        return f"{one.budget} there"
    if one.spread is None:
        return BESIDE
    if diverged:
        return DIVERGED
    if len(values) < 2:
        return ""
    x = np.asarray(values, np.float64)
    ahead, most = float(x.mean()) - one.mean, ERRORS * math.sqrt(x.var(ddof=1) / len(x) + one.spread**2 / one.seeds)
    if abs(ahead) > most:
        return ABOVE if ahead > 0 else MISSED
    return REACHED if most <= WIDEST * abs(one.mean) else WIDE

"""The quantities that checks compare: one number a run. Each is a component of kind `quantity`, named by `use`.

Left out: the rule (`verdict`). Axes: `T` points of a curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from shuhari.bounds import ProperShare, check
from shuhari.config.overlay import RecipeError
from shuhari.data import EMPTY, nearest
from shuhari.kernel.registry import register
from shuhari.lab.claims.curve import Columns, Reading, cut, read_curve
from shuhari.ports import Analysis


@dataclass(frozen=True, eq=False)
class Evidence:
    """A run of an arm: its metrics, the budget `spent` at each step, its scores at the `start` of its last stage and
    the budget spent when that `began`, and the `whole` budget. `diverged`: it ended in NaN, or its filters kept
    nothing, and no quantity has a value. Without a run (`path` None) only the seed is known."""

    seed: int
    columns: Columns = EMPTY
    spent: Sequence[float] = ()
    start: Mapping[str, float] = EMPTY
    whole: float = math.nan
    path: Path | None = None
    diverged: bool = False
    began: float = 0.0
    cpu: float = math.nan  # CPU seconds

    @property
    def wall(self) -> float:
        """The wall time of the run in seconds, from its last report."""
        return float(self.columns["wall"][-1]) if self.spent else 0.0

    def read_curve(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Return ([T] spent, [T] value) of a metric, as reported."""
        return read_curve(self.columns, metric, self.spent, self.start, self.began)

    def read_within(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the curve up to the end of the budget, without NaN."""
        x, y = cut(self.whole, *self.read_curve(metric))
        return x[np.isfinite(y)], y[np.isfinite(y)]


class Quantity(Protocol):
    """A function from a run to one number; a run that diverged is not passed (`read_value`). Optional members
    (`abilities`): `names`, the metrics that it reads, which are stored and plotted; `trains`, whether it needs runs;
    `alone`, whether the runs must have the machine for themselves."""

    def __call__(self, run: Evidence) -> float: ...


def read_value(quantity: Quantity, run: Evidence, arm: str, check: int) -> float:
    """Return the quantity of check number `check` for an arm's run; NaN if the run diverged. Raises RecipeError if the
    run lacks a metric."""
    if run.diverged:
        return math.nan
    try:
        found = quantity(run)
    except KeyError as error:
        kept = " (the runs are kept)" if run.path is not None else ""  # the curves of a card or a result are no runs
        raise RecipeError(f"claim.check.{check}", f"arm {arm!r}: {error.args[0]}{kept}") from None
    return found if math.isfinite(found) else math.nan


def read_values(quantity: Quantity, runs: Iterable[Evidence], arm: str, check: int) -> list[float]:
    """Return [S] the quantity of each run of an arm, NaN for runs that diverged."""
    return [read_value(quantity, run, arm, check) for run in runs]


REST = "1 - "  # before a metric: what its reading leaves of 1


@register("quantity", "metric")
@dataclass
class Metric:
    """A reading of a curve, `metric = "evaluate/mean:final"`; `curve.Reading` lists the readings. After `1 - ` it is
    the rest of a share: `metric = "1 - rollout/alike:mean"`."""

    metric: str
    """Metric and reading, such as `evaluate/mean:final`; other readings are `area`, `best` and more."""

    def __post_init__(self) -> None:
        self._reading = Reading.of(self.metric.removeprefix(REST))

    @property
    def names(self) -> tuple[str, ...]:
        return self._reading.names

    def __call__(self, run: Evidence) -> float:
        found = self._reading(run.columns, run.spent, run.start, run.whole, run.began)
        return 1 - found if self.metric.startswith(REST) else found


@register("quantity", "gain")
@dataclass
class Gain:
    """`metric` minus `weight` times `other`, two readings of one run. For example what another way of decoding gains
    over the plain one, `metric = "evaluate/vote.mean:final", other = "evaluate/mean:final"`; or a reward minus beta
    times a KL."""

    metric: str
    """Metric and reading from which `other` is subtracted, such as `evaluate/vote.mean:final`."""
    other: str
    """Metric and reading to subtract, such as `evaluate/mean:final`."""
    weight: float = 1.0
    """Factor of `other` before it is subtracted."""

    def __post_init__(self) -> None:
        check(self)
        self._readings = Reading.of(self.metric), Reading.of(self.other)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(
                n
                for reading in self._readings
                for n in reading.names
            )
        )

    def __call__(self, run: Evidence) -> float:
        a, b = (reading(run.columns, run.spent, run.start, run.whole, run.began) for reading in self._readings)
        return a - self.weight * b


def join_metrics(run: Evidence, first: str, second: str) -> tuple[np.ndarray, np.ndarray]:
    """Return ([T], [T]) values of two metrics, at the points that have both."""
    a, b = (dict(zip(x.tolist(), y.tolist(), strict=True)) for x, y in map(run.read_within, (first, second)))
    common = [x for x in a if x in b]
    return (
        np.array([a[x] for x in common]),
        np.array([b[x] for x in common]),
    )


@register("quantity", "correlation")
@dataclass
class Correlation:
    """Spearman's rank correlation of `metric` and `other` over a run, in [-1, 1]; NaN with fewer than three points."""

    metric: str
    """First metric; only points that have both metrics count."""
    other: str
    """Second metric."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.metric, self.other

    def __call__(self, run: Evidence) -> float:
        from scipy.stats import spearmanr

        x, y = join_metrics(run, self.metric, self.other)
        return float(spearmanr(x, y).statistic) if len(x) > 2 else math.nan


@register("quantity", "separation")
@dataclass
class Separation:
    """Probability that a value of `metric` exceeds one of `other`, ties counting half: the area under the ROC curve."""

    metric: str
    """Metric whose values should be larger."""
    other: str
    """Metric that it is compared with."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.metric, self.other

    def __call__(self, run: Evidence) -> float:
        (_, x), (_, y) = run.read_within(self.metric), run.read_within(self.other)
        return float((x[:, None] > y).mean() + 0.5 * (x[:, None] == y).mean()) if len(x) and len(y) else math.nan


FORMS: dict[str, tuple[Callable[..., Any], int]] = {  # y as a function of x, and its number of parameters
    "linear": (lambda x, a, b: a * x + b, 2),
    "exponential": (lambda x, a, b: a * np.exp(x) + b, 2),
    "power": (lambda x, a, b, c: a * np.power(np.maximum(x, 1e-12), b) + c, 3),
    "sigmoid": (lambda x, a, b, c: a / (1 + np.exp(-b * (x - c))), 3),
}


@register("quantity", "fit")
@dataclass
class Fit:
    """R² of predicting the rest of a run: `metric` = form(`other`) is fitted by least squares to the first `train`
    share of the points, and tested on the others. At most 1; NaN if the fit does not converge or too few points are
    held out."""

    metric: str
    """Metric to predict, y."""
    other: str
    """Metric to predict from, x."""
    form: Literal["linear", "exponential", "power", "sigmoid"] = "linear"
    """Curve to fit: linear a x + b, exponential a e^x + b, power a x^b + c, sigmoid a / (1 + e^(-b (x - c)))."""
    train: ProperShare = 0.5
    """Share of the points that the curve is fitted to, from the first on; the rest is predicted."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def names(self) -> tuple[str, ...]:
        return self.metric, self.other

    def __call__(self, run: Evidence) -> float:
        from scipy.optimize import curve_fit

        y, x = join_metrics(run, self.metric, self.other)
        function, free = FORMS[self.form]
        cut = int(len(x) * self.train)
        if cut <= free or len(x) - cut < 2:
            return math.nan
        try:
            found, _ = curve_fit(function, x[:cut], y[:cut], maxfev=10_000)
        except RuntimeError:
            return math.nan
        rest = y[cut:]
        error, spread = ((rest - function(x[cut:], *found)) ** 2).sum(), ((rest - rest.mean()) ** 2).sum()
        return float(1 - error / spread) if spread else math.nan


@register("quantity", "speed")
@dataclass
class Speed:
    """Units of the budget per second of wall time, after the first step. Its runs have the machine for themselves."""

    alone: ClassVar[bool] = True

    def __call__(self, run: Evidence) -> float:
        wall = run.columns["wall"]
        return float((run.spent[-1] - run.spent[0]) / (wall[-1] - wall[0])) if len(wall) > 1 else math.nan


@register("quantity", "simulated")
@dataclass
class Simulated:
    """A number from an analysis without training: `metric` in what the component `by` of kind `analysis` returns for a
    seed. An identity is checked with direction `equal`."""

    by: Analysis
    """Analysis that computes the numbers for a seed."""
    metric: str
    """Name of the number to read from what `by` returns."""
    trains: ClassVar[bool] = False

    def __call__(self, run: Evidence) -> float:
        values = self.by(run.seed)
        if self.metric not in values:
            raise KeyError(f"the analysis gives no {self.metric!r}; {nearest(self.metric, values)}")
        return float(values[self.metric])

"""Fits a saturating curve to the first part of a run, and tests it on the rest (ScaleRL, Khatri et al. 2025, arXiv
2510.13786).

Left out: the search over a grid of ceilings and midpoints; each fit starts from several points instead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from shuhari.bounds import ProperShare, check
from shuhari.data import Array
from shuhari.kernel.coverage import LEVEL
from shuhari.kernel.findings import AnalysisError, Curves, Finding, Given, Number, Panel, Reads
from shuhari.kernel.registry import register

Point = tuple[float, float, float]  # what is fitted
LEAST = 8  # points of a curve
GUESSES = ((0.3, 1.0), (1.0, 1.0), (3.0, 1.0), (1.0, 0.5), (1.0, 2.0), (0.1, 2.0))  # midpoint over the last x, exponent
METRICS = ("evaluate/mean", "evaluate/greedy", "eval_reward", "eval/mean_reward", "rollout/ep_rew_mean", "reward", "r")


@register("run_analysis", "scaling")
@dataclass
class Scaling:
    """How far a run's score would rise with more compute, fitted on its first part and tested on the rest.

    The curve is R(x) = R0 + (A - R0) / (1 + (M / x)^B): R0 the score at the first point, A the ceiling, M the compute
    at half of the gain, B the steepness. Beside it a power law, A - D x^-B. Numbers, of each run: `ceiling` A,
    `midpoint` M, `steepness` B, fitted on the points up to `share` of the compute; `error` and `power error`, the mean
    absolute difference to the later points, in units of the score. Intervals: bootstrap of the residuals, R0's among
    them. The error of a null, that the score stays at the last fitted points' mean, stands beside `error`. A ceiling
    far above the points is not determined by them: its interval is wide then.
    """

    metric: str = ""
    """Column of the score; by default the first of `evaluate/mean`, `evaluate/greedy` and the usual names of other
    programs that is there. A held-out score, not the training reward."""
    over: str = ""
    """Column of the compute, such as `spent/tokens`; the run's steps if empty. Of several stages the last one is
    fitted, from where it begins."""
    share: ProperShare = 0.5
    """Share of the compute whose points are fitted."""
    skip: float = 0.0
    """Compute before which points are left out, in units of `over`: the start of a run is often irregular."""

    reads: ClassVar[Reads] = "curves"

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, given: Given) -> Finding:
        """Raises AnalysisError for a run with too few points, and for a metric that it does not have."""
        curves = given.read_curves()
        numbers: dict[str, Number] = {}
        panels: dict[str, Panel] = {}
        for one in curves:
            x, y = self._read(one)
            found, panels[one.name] = self._fit(x, y, given.draw_from(one.name), self.over or one.axis)
            numbers |= {f"{key} of {one.name}" if len(curves) > 1 else key: v for key, v in found.items()}
        return Finding(numbers, panels)

    def _read(self, one: Curves) -> tuple[Array, Array]:
        metric = self.metric or next((name for name in METRICS if name in one.columns), "")
        if not metric:
            raise AnalysisError(f"{one.name}: which column is the score? --set metric=..., one of "
                                f"{', '.join(list(one.columns)[:12])}")  # fmt: skip
        x, y = one.select_last(self.over).read(metric, self.over)
        kept = x > max(self.skip, 0.0)
        first = y[x <= max(self.skip, 0.0)][-1:]  # the score before any compute is R0, and no point of the curve
        x, y = x[kept], y[kept]
        if (early := int((x <= self.share * x.max()).sum()) if len(x) else 0) < LEAST or len(x) - early < 2:
            found = f"{metric} has {early} points in the first {self.share:.0%} of the compute, {len(x) - early} behind"
            raise AnalysisError(f"{one.name}: {found}: expected {LEAST} and 2 or more: evaluate more often "
                                "([evaluate] every)")  # fmt: skip
        return np.concatenate([[0.0], x]) if len(first) else x, np.concatenate([first, y])

    def _fit(
        self, x: Array, y: Array, rng: np.random.Generator, axis: str
    ) -> tuple[dict[str, Number], Panel]:
        start, inside = float(y[0]), x > 0
        x, y = x[inside], y[inside]
        early = x <= self.share * x.max()
        scale = float(x.max())
        curve = fit_sigmoid(x[early] / scale, y[early], start)
        law = fit_power(x[early] / scale, y[early])
        ends, late = x[~early] / scale, y[~early]
        fitted = sigmoid(x[early] / scale, start, *curve)
        residuals = (y[early] - fitted) * math.sqrt(len(fitted) / (len(fitted) - len(curve)))  # of three parameters
        draws = []
        for _ in range(200):
            again = fitted + rng.choice(residuals, len(residuals))
            begun = start + float(rng.choice(residuals))  # R0 is a point of the curve, as noisy as the others
            draws.append([*(fit := fit_sigmoid(x[early] / scale, again, begun, (curve,))),
                          float(np.abs(sigmoid(ends, begun, *fit) - late).mean())])  # fmt: skip
        low, high = np.quantile(np.array(draws), LEVEL, axis=0).tolist()
        a, m, b = curve
        error = float(np.abs(sigmoid(ends, start, *curve) - late).mean())
        flat = float(np.abs(y[early][-max(1, len(y[early]) // 4) :].mean() - late).mean())
        numbers = {
            "ceiling": Number(a, low[0], high[0], says="score at unlimited compute"),
            "midpoint": Number(m * scale, low[1] * scale, high[1] * scale, says=f"{axis} at half of the gain"),
            "steepness": Number(b, low[2], high[2], says="exponent"),
            "error": Number(error, low[3], high[3], null=flat, says="mean absolute, on the later points"),
            "power error": Number(float(np.abs(power(ends, *law) - late).mean()), says="the same of a power law"),
        }
        grid = np.linspace(float(x.min()), scale, 100)
        lines = {"score": (x, y), "sigmoid, fitted on the first part": (grid, sigmoid(grid / scale, start, *curve)),
                 "power law": (grid, power(grid / scale, *law))}  # fmt: skip
        return numbers, Panel(lines, axis, "score", dots=("score",))


def sigmoid(x: Array, start: float, ceiling: float, midpoint: float, steepness: float) -> Array:
    """Return R0 + (A - R0) / (1 + (M / x)^B) at x > 0."""
    exponent = np.clip(steepness * (np.log(midpoint) - np.log(x)), -700, 700)
    return start + (ceiling - start) / (1 + np.exp(exponent))


def power(x: Array, limit: float, scale: float, exponent: float) -> Array:
    """Return A - D x^-B at x > 0."""
    return limit - scale * np.exp(np.clip(-exponent * np.log(x), -700, 700))


def fit_sigmoid(
    x: Array, y: Array, start: float, guesses: Sequence[Point] = ()
) -> Point:
    """Return (ceiling, midpoint, steepness) of the least squares over x in (0, 1], started at each guess, by default
    six of midpoint and steepness with the largest value as ceiling. The midpoint is at most 100, the steepness within
    [0.05, 20]."""
    top = float(y.max() if y.mean() >= start else y.min())
    begun = guesses or tuple((top, m, b) for m, b in GUESSES)

    def gap(p: Array) -> Array:
        return sigmoid(x, start, p[0], math.exp(p[1]), math.exp(p[2])) - y

    bounds = (-np.inf, math.log(1e-4), math.log(0.05)), (np.inf, math.log(100.0), math.log(20.0))
    a, m, b = _fit_from(gap, [(g[0], math.log(g[1]), math.log(g[2])) for g in begun], bounds)
    return a, math.exp(m), math.exp(b)


def fit_power(x: Array, y: Array) -> Point:
    """Return (limit, scale, exponent) of the least squares, the exponent within [0.05, 5]."""
    begun = [(float(y.max()), float(np.ptp(y)) or 1.0, math.log(b)) for b in (0.3, 1.0, 2.0)]

    def gap(p: Array) -> Array:
        return power(x, p[0], p[1], math.exp(p[2])) - y

    bounds = (-np.inf, -np.inf, math.log(0.05)), (np.inf, np.inf, math.log(5.0))
    limit, scale, exponent = _fit_from(gap, begun, bounds)
    return limit, scale, math.exp(exponent)


def _fit_from(gap: Any, begun: Sequence[Point], bounds: tuple[Point, Point]) -> Point:
    from scipy.optimize import least_squares

    fits = [least_squares(gap, guess, bounds=bounds, x_scale="jac") for guess in begun]
    best = min(fits, key=lambda fit: float(fit.cost))
    return float(best.x[0]), float(best.x[1]), float(best.x[2])

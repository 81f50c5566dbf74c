"""Estimates and intervals for what runs measure: pass@k, tails, proportions, means over problems or seeds, differences.

Axes: `N` problems, seeds or runs. Every interval is two-sided at `level`. Intervals over few seeds are wide because
little is known, not because of the method: three seeds cannot give a narrow one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from shuhari.data import Array

UNGRADED = 0.1  # share of an evaluation above which its score chooses no checkpoint, and judges no run


@dataclass(frozen=True)
class Estimate:
    """A number with its interval [low, high]; the ends are NaN if there is too little data for one. `n`:
    observations."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.value:.3f} (n = {self.n})"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that k of n samples, drawn without replacement, hold one of the c right ones: 1 - C(n-c, k) /
    C(n, k), unbiased for the pass@k of the policy (Chen et al. 2021, Evaluating Large Language Models Trained on Code,
    eq. 1).

    As a product, so that no binomial overflows. Raises ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not 0 <= c <= n:
        raise ValueError(f"pass@k: {c} right of {n} samples: expected 0 to {n}")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {n} samples: expected k from 1 to {n}; draw more samples for a larger k")
    if n - c < k:
        return 1.0
    i = np.arange(n - c + 1, n + 1, dtype=np.float64)
    return float(1.0 - np.prod(1.0 - k / i))


def wilson(successes: int, n: int, level: float = 0.95) -> Estimate:
    """Return a proportion with Wilson's score interval (Wilson 1927): the normal approximation solved for the true
    proportion, so that it stays in [0, 1] and is informative at 0 and at n."""
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}: expected 0 to n, and n at least 1")
    return Estimate(successes / n, *_score(successes / n, n, level), n)


def interval(values: Sequence[float] | Array, level: float = 0.95) -> Estimate:
    """Return the mean of one value a problem, `values` [N], with its interval over problems; NaN (ungraded) is left
    out.

    For shares, values in [0, 1]: Wilson's at the effective number of problems N p (1 - p) / s^2, s^2 their variance:
    the number of right-or-wrong problems with chance p that would carry the same information (a design effect: Korn and
    Graubard 1998). If all are 0 or 1, that is `wilson` itself. For other values: Student's. ValueError if nothing is
    left.
    """
    x = np.asarray(values, np.float64)
    x = x[~np.isnan(x)]
    if not len(x):
        raise ValueError("no values: there is nothing to average")
    if x.min() < 0 or x.max() > 1:
        return t_interval(x, level)
    p, variance = float(x.mean()), float(x.var())
    effective = len(x) * (p * (1 - p) / variance if variance > 0 else 1.0)
    return Estimate(p, *_score(p, effective, level), len(x))


def t_interval(values: Sequence[float] | Array, level: float = 0.95) -> Estimate:
    """Return the mean of `values` [N] with Student's interval: for differences paired by seed, the paired t interval.
    NaN values are left out. With few seeds it errs seldom, while a percentile bootstrap does so often."""
    x = np.asarray(values, np.float64)
    x = x[~np.isnan(x)]
    if len(x) < 2:
        return Estimate(float(x.mean()) if len(x) else math.nan, math.nan, math.nan, len(x))
    from scipy.stats import t

    half = float(t.ppf((1 + _level(level)) / 2, len(x) - 1)) * float(x.std(ddof=1)) / math.sqrt(len(x))
    mean = float(x.mean())
    return Estimate(mean, mean - half, mean + half, len(x))


def difference(
    a: Sequence[float] | Array, b: Sequence[float] | Array, *, paired: bool, level: float = 0.95
) -> Estimate:
    """Return mean(b) - mean(a) with Student's interval, as in claims.

    paired: entry i of both belongs together (the same seed, the same problem); a pair with a NaN is left out. Otherwise
    Welch's, of unequal variances. `n` is the number of pairs, or of the smaller sample.
    """
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if paired:
        if x.shape != y.shape:
            raise ValueError(f"paired samples of {len(x)} and {len(y)} entries: expected as many of both")
        return t_interval(y - x, level)
    x, y = x[~np.isnan(x)], y[~np.isnan(y)]
    if not len(x) or not len(y):
        raise ValueError("no values: there is nothing to average")
    value, n = float(y.mean() - x.mean()), min(len(x), len(y))
    if n < 2:
        return Estimate(value, math.nan, math.nan, n)
    from scipy.stats import t

    u, v = float(x.var(ddof=1)) / len(x), float(y.var(ddof=1)) / len(y)
    freedom = (u + v) ** 2 / (u**2 / (len(x) - 1) + v**2 / (len(y) - 1)) if u + v else n - 1
    half = float(t.ppf((1 + _level(level)) / 2, freedom)) * math.sqrt(u + v)
    return Estimate(value, value - half, value + half, n)


def p_value(a: Sequence[float] | Array, b: Sequence[float] | Array, *, paired: bool) -> float:
    """Return the two-sided p of `difference`: 1 minus the highest level at which its interval excludes 0. NaN if there
    is no interval, or if it has no width (differences that are all the same)."""
    from scipy import stats as tests

    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if paired:
        x, y = x[there := ~np.isnan(x - y)], y[there]
        return float(tests.ttest_rel(y, x).pvalue) if len(x) > 1 and np.ptp(y - x) > 0 else math.nan
    x, y = x[~np.isnan(x)], y[~np.isnan(y)]
    some = min(len(x), len(y)) > 1 and (np.ptp(x) > 0 or np.ptp(y) > 0)
    return float(tests.ttest_ind(y, x, equal_var=False).pvalue) if some else math.nan


def find_levels(p: Sequence[float], alphas: Sequence[float]) -> list[float]:
    """Return [M] the level of each interval of M comparisons that are read together, by Holm's step-down (1979, A
    Simple Sequentially Rejective Multiple Test Procedure).

    The comparison with the smallest p is read at 1 - alpha / M, the next at 1 - alpha / (M - 1), and so on to the first
    that includes 0, whose divisor holds for all after it. So the chance that any interval excludes 0 though there is no
    difference is at most alpha. `alphas`: of each alone; if they differ, the order is by p / alpha. NaN if p is NaN:
    such a comparison does not count."""
    known = [i for i in range(len(p)) if not math.isnan(p[i])]
    out, divisor, ended = [math.nan] * len(p), len(known), False
    for rank, i in enumerate(sorted(known, key=lambda i: p[i] / alphas[i])):
        divisor = divisor if ended else len(known) - rank
        out[i] = 1 - alphas[i] / divisor
        ended = ended or p[i] > alphas[i] / divisor
    return out


def scores(
    outcomes: Sequence[Sequence[float]] | Array, k: Sequence[int] = (), solved: float = 1.0
) -> dict[str, Estimate]:
    """Return `mean` and each `pass@k` of graded samples [N, n], with intervals over problems (samples of one problem
    are alike, so problems are what is counted), by the rules of `by_problem`. ValueError if nothing is graded."""
    found = by_problem(outcomes, k, solved)
    if not len(found["mean"]):
        raise ValueError("no sample was graded: there is nothing to average")
    return {name: interval(values) for name, values in found.items() if len(values)}


def by_problem(
    outcomes: Sequence[Sequence[float]] | Array, k: Sequence[int] = (), solved: float = 1.0
) -> dict[str, Array]:
    """Return `mean` and each `pass@k` of graded samples [N, n]: one value a problem. NaN samples are left out of their
    problem (an ungraded sample is no wrong one), a problem with none graded out of the mean, and one with fewer than k
    graded samples out of pass@k, so that either may be of fewer than N."""
    x = np.asarray(outcomes, np.float64)
    graded = ~np.isnan(x)
    some, n, c = graded.any(1), graded.sum(1), (np.where(graded, x, -np.inf) >= solved).sum(1)
    out = {"mean": np.where(graded, x, 0.0).sum(1)[some] / n[some]}
    for width in k:
        passed = [pass_at_k(int(m), int(right), width) for m, right in zip(n, c, strict=True) if m >= width]
        out[f"pass@{width}"] = np.array(passed, np.float64)
    return out


def quantile(values: Sequence[float] | Array, a: float) -> float:
    """Return the smallest of the values that at least a share `a` of them does not exceed; NaN is left out, and is
    returned if nothing is left."""
    x = np.sort(np.asarray(values, np.float64)[~np.isnan(values)].ravel())
    return float(x[_places(len(x), a) - 1]) if len(x) else math.nan


def cvar(values: Sequence[float] | Array, a: float) -> float:
    """Return the mean of the lowest share `a` of the values, the one on the border counted in part (conditional value
    at risk of returns, Rockafellar and Uryasev 2000); NaN as for `quantile`."""
    x = np.sort(np.asarray(values, np.float64)[~np.isnan(values)].ravel())
    if not len(x):
        return math.nan
    whole = _places(len(x), a) - 1
    return float((x[:whole].sum() + (a * len(x) - whole) * x[whole]) / (a * len(x)))


def interquartile_mean(values: Sequence[float] | Array) -> float:
    """Return the mean of the middle half of the values: of n, int(n / 4) are cut at either end (Agarwal et al. 2021,
    Deep Reinforcement Learning at the Edge of the Statistical Precipice). NaN as for `quantile`."""
    x = np.sort(np.asarray(values, np.float64)[~np.isnan(values)].ravel())
    cut = len(x) // 4
    return float(x[cut : len(x) - cut].mean()) if len(x) else math.nan


def bootstrap_interquartile_mean(
    values: Sequence[float] | Array, level: float = 0.95, draws: int = 10_000, seed: int = 0
) -> Estimate:
    """Return the interquartile mean with its percentile bootstrap interval over runs of one task, `values` [N], as
    Agarwal et al. (2021) report it. With few runs it is too narrow: it errs more often than `level` states."""
    x = np.asarray(values, np.float64)
    x = x[~np.isnan(x)]
    if len(x) < 2:
        return Estimate(interquartile_mean(x), math.nan, math.nan, len(x))
    drawn = np.sort(x[np.random.default_rng(seed).integers(0, len(x), (draws, len(x)))], axis=1)
    cut, tail = len(x) // 4, (1 - _level(level)) / 2
    low, high = np.quantile(drawn[:, cut : len(x) - cut].mean(1), (tail, 1 - tail))
    return Estimate(interquartile_mean(x), float(low), float(high), len(x))


def profile_performance(values: Sequence[float] | Array, at: Sequence[float] | Array) -> Array:
    """Return [T] the share of runs whose score, of `values` [N], is above each threshold `at` [T]: the run-score
    distribution of Agarwal et al. (2021). NaN if no run has a score."""
    x = np.sort(np.asarray(values, np.float64)[~np.isnan(values)].ravel())
    below = np.searchsorted(x, np.asarray(at, np.float64), side="right")
    return 1 - below / len(x) if len(x) else np.full(np.shape(at), math.nan)


def powers(n: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to n: the k of pass@k that n samples allow."""
    return tuple(2**i for i in range(n.bit_length()))


# ------------------------------------------------------------------------------------------------ helpers


def _places(n: int, a: float) -> int:
    """Return how many of n values, whole or in part, lie in their lowest share a."""
    return max(1, math.ceil(round(a * n, 9)))


def _level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level is {level}: expected a number in (0, 1)")
    return level


def _score(p: float, n: float, level: float) -> tuple[float, float]:
    """Return the ends of Wilson's interval of a share p of n, which need be no whole number."""
    z = NormalDist().inv_cdf((1 + _level(level)) / 2)
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = 0.0 if p == 0 else max(0.0, middle - half)  # exactly 0 and 1 there; rounding would miss them
    return low, 1.0 if p == 1 else min(1.0, middle + half)

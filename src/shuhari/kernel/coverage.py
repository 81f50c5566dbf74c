"""Which problems a policy solves with many samples, and how that compares with another policy's. Used by analyses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shuhari.data import Array
from shuhari.kernel.findings import Answers, Number
from shuhari.kernel.stats import by_problem, powers

LEVEL = (0.025, 0.975)


def list_budgets(samples: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... and the number of samples itself."""
    return tuple(dict.fromkeys((*powers(samples), samples)))


def compute_pass(right: Array, budgets: tuple[int, ...]) -> Array:
    """Return [n, len(budgets)], the unbiased pass@k of each problem (Chen et al. 2021), from `right` [n, samples] in
    {0, 1}; a sample that was not graded (NaN) counts as wrong."""
    found = by_problem(np.nan_to_num(right), budgets, 1.0)
    return np.stack([found[f"pass@{k}"] for k in budgets], axis=1)


def find_crossing(start: Array, later: Array, budgets: tuple[int, ...]) -> float:
    """Return the smallest budget k at which the mean pass@k of the start [n, len(budgets)] is at least that of the
    later policy; 1 if it is from k = 1 on, NaN if it never is, or if neither ever solves a problem."""
    if not max(start.max(initial=0.0), later.max(initial=0.0)):
        return math.nan
    ahead = later.mean(0) - start.mean(0) > 1e-12
    return next((float(k) for k, later_leads in zip(budgets, ahead, strict=True) if not later_leads), math.nan)


def count_solved(start: Array, later: Array) -> dict[str, int]:
    """Return how many problems are solved at least once by both, by one alone, and by neither, of `right` [n, samples]
    each: `kept`, `lost`, `gained`, `unsolved`."""
    before, after = (np.nan_to_num(right).max(1) > 0 for right in (start, later))
    return {
        "kept": int((before & after).sum()),
        "lost": int((before & ~after).sum()),
        "gained": int((~before & after).sum()),
        "unsolved": int((~before & ~after).sum()),
    }


def bootstrap(of: Callable[[Array], float], n: int, rng: np.random.Generator, draws: int = 1000) -> tuple[float, float]:
    """Return the 95 % percentile interval of a statistic of the places 0..n-1, drawn again with replacement; NaN if it
    is not finite in a fortieth of the draws or more."""
    values = np.array([of(rng.integers(0, n, n)) for _ in range(draws)])
    if n < 2 or np.isfinite(values).mean() <= 1 - LEVEL[0]:
        return math.nan, math.nan
    low, high = np.quantile(values[np.isfinite(values)], LEVEL)
    return round(float(low), 12), round(float(high), 12)


def name_each(found: Mapping[str, Number], name: str, runs: int) -> dict[str, Number]:
    """Return numbers by name, with the run's if there are several."""
    return {f"{key} of {name}" if runs > 1 else key: number for key, number in found.items()}


def note_failures(sampled: Sequence[Answers]) -> list[str]:
    """Return a note on each policy some of whose answers were not graded."""
    shares = {one.name: float(np.isnan(one.right).mean()) for one in sampled}
    return [f"{name}: {share:.1%} of the answers were not graded, and count as wrong"
            for name, share in shares.items() if share]  # fmt: skip

"""Accuracy a problem, and means over problems with their intervals. Used by analyses."""

from __future__ import annotations

import numpy as np

from shuhari.data import Array
from shuhari.kernel.coverage import bootstrap
from shuhari.kernel.findings import NAN, Answers, Number


def find_rates(one: Answers) -> Array:
    """Return [n], the share of the answers to each problem that are right; those that were not graded are wrong."""
    rates: Array = np.nan_to_num(one.right).mean(1)
    return rates


def estimate(values: Array, rng: np.random.Generator, says: str = "", null: float = NAN) -> Number:
    """Return the mean of `values` [n], one a problem, with its bootstrap interval."""
    low, high = bootstrap(lambda i: float(values[i].mean()), len(values), rng)
    return Number(float(values.mean()), low, high, null, says)

"""Answers of a start and of later policies, accuracy a problem, and means over problems with their intervals. Used by
analyses."""

from __future__ import annotations

import numpy as np

from shuhari.data import Array
from shuhari.kernel.coverage import bootstrap
from shuhari.kernel.findings import NAN, Answers, Given, Number


def sample_beside_null(
    given: Given, n: int, samples: int, temperature: float
) -> tuple[Answers, list[Answers], Answers]:
    """Return answers of the start, which is given first, of each later policy, and of the start once more: by it, what
    a number is where nothing has changed."""
    start, *later = given.sample(n, samples, temperature=temperature)
    (again,) = given.sample(n, samples, temperature=temperature, draw=1, which=[0])
    return start, later, again


def find_rates(one: Answers) -> Array:
    """Return [n], the share of the answers to each problem that are right; those that were not graded are wrong."""
    rates: Array = np.nan_to_num(one.right).mean(1)
    return rates


def estimate(values: Array, rng: np.random.Generator, says: str = "", null: float = NAN) -> Number:
    """Return the mean of `values` [n], one a problem, with its bootstrap interval."""
    low, high = bootstrap(lambda i: float(values[i].mean()), len(values), rng)
    return Number(float(values.mean()), low, high, null, says)

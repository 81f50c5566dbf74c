"""The detector by hand, by enumeration of all streams, and by products of predictions one after another."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from shuhari.data import Array
from shuhari.learners.change_points import has_changed, log_evidence, split_evidence


def forecast(stream: Array, kinds: int) -> float:
    """The probability that Laplace's rule gives a stream, outcome by outcome."""
    seen, out = np.zeros(kinds), 1.0
    for o in stream:
        out *= (seen[o] + 1) / (seen.sum() + kinds)
        seen[o] += 1
    return out


def test_three_alike_of_two_kinds_have_probability_a_quarter() -> None:
    assert np.exp(log_evidence(np.array([3, 0]))) == pytest.approx(0.25)
    assert np.exp(log_evidence(np.array([0, 0, 0]))) == pytest.approx(1.0)


@pytest.mark.parametrize(("n", "ratio"), [(2, 10 / 3), (3, 8.75), (5, 77.0)])
def test_a_split_by_hand(n: int, ratio: float) -> None:
    """Of 0^n 1^n, split in the middle: 1 / (n + 1)^2 over n! n! / (2n + 1)!."""
    assert np.exp(split_evidence(np.repeat([0, 1], n), 2)[n - 1]) == pytest.approx(ratio)


def test_splits_are_ratios_of_predictions_made_one_after_another() -> None:
    stream = np.random.default_rng(0).integers(0, 3, 9)
    whole = forecast(stream, 3)
    expected = [forecast(stream[:s], 3) * forecast(stream[s:], 3) / whole for s in range(1, 9)]
    assert np.exp(split_evidence(stream, 3)) == pytest.approx(expected)
    renamed = np.array([2, 0, 1])[stream]
    assert split_evidence(renamed, 3) == pytest.approx(split_evidence(stream, 3))


def test_it_alarms_at_the_rate_where_the_evidence_passes_it() -> None:
    """Of 0^6 1^6 the evidence is 13! / (6! 6! 49), 245.14, held against 156 / rate."""
    longer = np.repeat([0, 1], 6)
    assert has_changed(longer, 2, 0.64) and not has_changed(longer, 2, 0.63)
    assert not has_changed(np.array([1]), 2, 0.99)


def test_at_most_the_rate_of_streams_alarms() -> None:
    """All streams of 12 outcomes of two kinds, each as likely as a law drawn uniformly makes it. No shorter one alarms:
    of 11 the most that a split gains is 132, that of 0^5 1^6, against 132 / rate."""
    rate = 0.99
    assert np.exp(split_evidence(np.repeat([0, 1], [5, 6]), 2).max()) == pytest.approx(132)
    streams = [x for x in map(np.array, product((0, 1), repeat=12)) if has_changed(x, 2, rate)]
    assert 0 < sum(forecast(x, 2) for x in streams) <= rate

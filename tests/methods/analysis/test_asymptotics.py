"""Tilts and best-of-N by hand, by enumeration and by the paper's limit."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from shuhari.methods.analysis.asymptotics.best_of_n import (
    Asymptotics,
    best_of,
    divergence,
    find_tilt,
    list_sums,
    tilt,
)

P, R = np.array([0.5, 0.3, 0.2]), np.array([0.0, 1.0, 2.0])


def test_the_tilt_by_hand() -> None:
    found = tilt(P, R, 1.0)
    assert found == pytest.approx([0.1790, 0.2919, 0.5291], abs=1e-4)
    assert divergence(found, P) == pytest.approx(0.32283, abs=1e-5)
    assert find_tilt(P, R, divergence(found, P)) == pytest.approx(1.0)


def test_the_best_of_four_by_hand() -> None:
    """(.5)^4, (.8)^4 - (.5)^4, 1 - (.8)^4."""
    mean, kl = best_of(P, R, 4)
    q = np.array([0.0625, 0.3471, 0.5904])
    assert mean == pytest.approx(q @ R, abs=1e-4)
    assert kl == pytest.approx(0.5598, abs=1e-4) and kl < math.log(4) - 3 / 4


def test_many_outcomes_of_different_rewards_reach_the_bound() -> None:
    n = 4
    _, kl = best_of(np.full(20_000, 1 / 20_000), np.arange(20_000.0), n)
    assert kl == pytest.approx(math.log(n) - (n - 1) / n, abs=1e-3)


def test_sums_of_letters_by_enumeration() -> None:
    p, r = list_sums(P, R, 5)
    brute: dict[float, float] = {}
    for letters in product(range(3), repeat=5):
        total = float(R[list(letters)].sum())
        brute[total] = brute.get(total, 0.0) + float(P[list(letters)].prod())
    for value, mass in brute.items():
        assert p[np.isclose(r, value)].sum() == pytest.approx(mass)


def test_the_identity_of_near_optimal_policies() -> None:
    """D(q || tilt) = D(q || p) - KL - t (E_q r - E_tilt r), for every q."""
    t = 0.7
    best = tilt(P, R, t)
    for q in np.random.default_rng(0).dirichlet(np.ones(3), 5):
        left = divergence(q, best)
        assert left == pytest.approx(divergence(q, P) - divergence(best, P) - t * (q @ R - best @ R), abs=1e-10)


def test_a_fair_coin_at_a_tenth_of_a_nat_ends_at_its_limit() -> None:
    """The largest q with D(q || 1/2) = .1 is .7198."""
    coin, reward = np.array([0.5, 0.5]), np.array([0.0, 1.0])
    assert tilt(coin, reward, find_tilt(coin, reward, 0.1)) @ reward == pytest.approx(0.7198, abs=1e-4)


def test_the_gap_closes_as_answers_get_longer() -> None:
    for seed in range(5):
        found = Asymptotics()(seed)
        assert found["shrinks"] == 1 and 0 < found["gap/256"] < 0.25 * found["gap/4"]


def test_a_kl_that_no_tilt_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected one within \(0, -log p\(best\)\)"):
        find_tilt(P, R, 2.0)

"""Looks against the noncentral t of scipy, and against plain simulations of pairs, seed by seed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import nct, t, ttest_1samp

from shuhari.lab.claims.looks import (
    LOOKS,
    compute_levels,
    compute_mde,
    draw_trajectories,
    find_chance,
    is_hopeless,
    simulate_power,
)


@pytest.mark.parametrize("n", [5, 8, 24])
def test_one_look_finds_what_the_noncentral_t_says(n: int) -> None:
    critical = t.ppf(0.975, n - 1)
    found = 1 - nct.cdf(critical, n - 1, simulate_power((n,)).mde * np.sqrt(n))
    assert found == pytest.approx(0.8, abs=0.003)
    assert find_chance(1.0, (n,)) == pytest.approx(1 - nct.cdf(critical, n - 1, np.sqrt(n)), abs=0.003)


def pairs(effect: float, draws: int = 40_000) -> np.ndarray:
    """[draws, looks] whether scipy's interval of simulated pairs lies above 0, look by look."""
    x = np.random.default_rng(7).normal(effect, 1.0, (draws, LOOKS[-1]))
    found = [ttest_1samp(x[:, :n], 0, axis=1).confidence_interval(level).low > 0 for n, level in zip(LOOKS, compute_levels(LOOKS), strict=True)]  # fmt: skip # noqa: E501
    return np.stack(found, 1)


def test_three_looks_keep_five_percent() -> None:
    mean, half = draw_trajectories(LOOKS, 400_000, seed=5)
    wrong = (np.abs(mean) > half).any(1).mean()
    assert wrong == pytest.approx(0.05, abs=0.0015)  # four deviations of this simulation
    assert pairs(0.0).any(1).mean() == pytest.approx(0.025, abs=0.003)


def test_looks_of_an_effect_are_those_of_simulated_pairs() -> None:
    found = pairs(simulate_power(LOOKS).mde)
    assert found.any(1).mean() == pytest.approx(0.8, abs=0.01)
    ended = np.array([*LOOKS, LOOKS[-1]])[np.where(found.any(1), found.argmax(1), 3)]
    assert ended.mean() == pytest.approx(simulate_power(LOOKS).pairs, abs=0.1)
    assert simulate_power((12,)).mde < simulate_power(LOOKS).mde < simulate_power((8,)).mde


def test_an_effect_that_was_found_early_is_overstated() -> None:
    x = np.random.default_rng(9).normal(simulate_power(LOOKS).mde, 1.0, (40_000, LOOKS[-1]))
    found = pairs(simulate_power(LOOKS).mde)
    told = np.stack(
        [np.random.default_rng(7).normal(simulate_power(LOOKS).mde, 1.0, x.shape)[:, :n].mean(1) for n in LOOKS], 1
    )
    first = told[np.arange(len(x)), found.argmax(1)][found.any(1)]
    assert first.mean() / simulate_power(LOOKS).mde == pytest.approx(simulate_power(LOOKS).enlarged, abs=0.01)
    assert simulate_power(LOOKS).enlarged > 1.1


def test_alike_is_shown_within_a_tolerance() -> None:
    x = np.random.default_rng(3).normal(0.0, 1.0, (20_000, 8))
    ends = ttest_1samp(x, 0, axis=1).confidence_interval(0.95)
    tolerance = simulate_power((8,)).equal
    assert ((ends.low > -tolerance) & (ends.high < tolerance)).mean() == pytest.approx(0.8, abs=0.015)


def test_an_mde_is_in_units_of_the_spread() -> None:
    assert compute_mde(0.02, LOOKS) == pytest.approx(0.02 * simulate_power(LOOKS).mde)
    assert compute_mde(0.02, LOOKS, "equal") > compute_mde(0.02, LOOKS)
    assert is_hopeless(0.041, 0.02) and not is_hopeless(0.039, 0.02)


def test_other_looks_are_refused() -> None:
    assert compute_levels((40,)) == (0.95,)
    with pytest.raises(ValueError, match=r"expected \[5, 8, 12\], or one number"):
        compute_levels((5, 10))

"""The gap between tuning and test scores, where it is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from shuhari.methods.analysis.autorl_hpo.overfit_gap import OverfitGap


def expect_largest(n: int) -> float:
    """The expected largest of `n` standard normal numbers."""
    return float(quad(lambda x: x * n * stats.norm.pdf(x) * stats.norm.cdf(x) ** (n - 1), -8, 8)[0])


def test_the_gap_of_pure_noise_is_the_expected_largest_of_normal_numbers() -> None:
    assert expect_largest(16) == pytest.approx(1.766, abs=1e-3)
    found = OverfitGap(deviation=0.0, sweeps=20_000)(0)
    assert found["gap/1"] == pytest.approx(expect_largest(16), abs=0.02)
    assert found["gap/5"] == pytest.approx(expect_largest(16) / np.sqrt(5), abs=0.02)
    assert found["best"] == found["score/1"] == 0


def test_without_noise_there_is_no_gap_and_the_best_is_found() -> None:
    found = OverfitGap(noise=0.0)(1)
    assert found["gap/1"] == 0 and found["score/1"] == found["best"]


def test_the_chosen_of_equally_noisy_trials_is_half_as_good_as_it_looks() -> None:
    """With equal variances the true score is half of the seen one, by regression to the mean."""
    found = OverfitGap(sweeps=20_000)(2)
    seen = np.sqrt(2) * expect_largest(16)
    assert found["gap/1"] == pytest.approx(seen / 2, abs=0.03)
    assert found["score/1"] == pytest.approx(seen / 2, abs=0.03)


def test_more_tuning_seeds_leave_a_smaller_gap() -> None:
    found = OverfitGap()(3)
    gaps = [found[f"gap/{seeds}"] for seeds in (1, 2, 5, 10)]
    assert gaps == sorted(gaps, reverse=True)

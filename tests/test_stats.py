"""Estimators against enumeration, scipy, and closed forms."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from shuhari.kernel.stats import (
    bootstrap_interquartile_mean,
    cvar,
    difference,
    find_levels,
    interquartile_mean,
    interval,
    p_value,
    pass_at_k,
    powers,
    profile_performance,
    quantile,
    scores,
    wilson,
)


@pytest.mark.parametrize(
    ("n", "c", "k"), [(n, c, k) for n in range(1, 7) for c in range(n + 1) for k in range(1, n + 1)]
)
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(n: int, c: int, k: int) -> None:
    samples = [1] * c + [0] * (n - c)
    share = np.mean([max(chosen) for chosen in combinations(samples, k)])
    assert pass_at_k(n, c, k) == pytest.approx(float(share), abs=1e-12)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_pass_at_k_is_unbiased(p: float, k: int) -> None:
    n = 4  # over all outcomes of n samples, each right with chance p
    expected = sum(p ** sum(o) * (1 - p) ** (n - sum(o)) * pass_at_k(n, sum(o), k) for o in product((0, 1), repeat=n))
    assert expected == pytest.approx(1 - (1 - p) ** k)


def test_pass_at_k_of_many_samples_stays_exact() -> None:
    exact = 1 - math.comb(9_990, 500) / math.comb(10_000, 500)
    assert pass_at_k(10_000, 10, 500) == pytest.approx(exact, rel=1e-9)


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=30), st.integers(1, 29))
def test_tails_are_those_of_each_value_repeated_until_they_come_out_even(x: list[int], thirtieths: int) -> None:
    a, many = thirtieths / 30, sorted(v for v in x for _ in range(30))
    low = many[: thirtieths * len(x)]
    assert cvar(x, a) == pytest.approx(np.mean(low)) and quantile(x, a) == low[-1]
    assert cvar([*map(float, x), math.nan], a) == cvar(x, a) and math.isnan(cvar([math.nan], a))
    assert quantile(x, a) == np.quantile(x, a, method="inverted_cdf") or thirtieths * len(x) % 30 == 0


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)])
def test_pass_at_k_refuses_what_it_cannot_estimate(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        pass_at_k(n, c, k)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.99))
def test_wilson_agrees_with_scipy(counts: tuple[int, int], level: float) -> None:
    c, n = counts
    ours, theirs = wilson(c, n, level), scipy.stats.binomtest(c, n).proportion_ci(level, method="wilson")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert ours.low <= ours.value == c / n <= ours.high


@pytest.mark.parametrize("values", [[0, 1, 1, 0, 1], [1] * 9, [0] * 4, [0, math.nan, 1]])
def test_the_interval_of_right_and_wrong_is_wilsons(values: list[float]) -> None:
    x = [v for v in values if v == v]
    ours, theirs = interval(values), wilson(int(sum(x)), len(x))
    assert (ours.value, ours.n) == (theirs.value, theirs.n)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


def test_the_interval_of_shares_counts_what_they_tell() -> None:
    """Half the standard deviation of a coin: as much as four times as many coins."""
    ours, coins = interval([0.25, 0.75] * 20), interval([0, 1] * 80)
    assert (ours.low, ours.high) == pytest.approx((coins.low, coins.high)) and (ours.n, coins.n) == (40, 160)
    wide, narrow = interval([0.5]), interval([0.3, 0.5, 0.7] * 30)
    assert wide.low < 0.1 and wide.high > 0.9 and narrow.high - narrow.low < 0.1


def test_the_interval_of_other_values_is_students() -> None:
    x = np.random.default_rng(0).exponential(size=12) - 0.2
    theirs = scipy.stats.ttest_1samp(x, 0).confidence_interval()
    assert (interval(x).low, interval(x).high) == pytest.approx((theirs.low, theirs.high))
    one = interval([3.0])
    assert (one.value, one.n) == (3.0, 1) and math.isnan(one.low) and math.isnan(one.high)
    with pytest.raises(ValueError, match="nothing to average"):
        interval([math.nan])


def test_pairing_takes_the_common_noise_out() -> None:
    noise = np.random.default_rng(0).normal(size=40)
    a, b = noise, noise + 0.1
    paired, apart = difference(a, b, paired=True), difference(a, b, paired=False)
    assert paired.value == pytest.approx(0.1) == apart.value
    assert (paired.low, paired.high) == pytest.approx((0.1, 0.1))
    assert apart.low < 0 < apart.high


def test_unpaired_difference_is_welchs() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=30), rng.normal(1, 2, size=50)
    ours = difference(a, [*b, math.nan], paired=False)
    theirs = scipy.stats.ttest_ind(b, a, equal_var=False).confidence_interval()
    assert (ours.low, ours.high, ours.n) == (pytest.approx(theirs.low), pytest.approx(theirs.high), 30)


def test_pairs_must_match() -> None:
    with pytest.raises(ValueError, match="3 and 2"):
        difference([1, 2, 3], [1, 2], paired=True)
    assert math.isnan(difference([1], [2, 3], paired=False).low)


@pytest.mark.parametrize("samples", [1, 8])
def test_an_interval_covers_about_as_often_as_it_says(samples: int) -> None:
    """Of problems that differ: solved with a chance of 0.1 or 0.9."""
    rng = np.random.default_rng(0)
    drawn = (rng.binomial(samples, rng.choice([0.1, 0.9], 60)) / samples for _ in range(600))
    hit = [e.low <= 0.5 <= e.high for e in map(interval, drawn)]
    assert 0.92 < np.mean(hit) < 0.98


def test_scores_of_samples_by_hand() -> None:
    nan = math.nan
    out = scores([[1, 0, 0, 0], [1, 1, nan, nan], [0, 0, 0, 0], [nan] * 4], k=(1, 2, 4))
    assert out["mean"].value == pytest.approx((0.25 + 1 + 0) / 3)
    assert out["pass@1"].value == pytest.approx((0.25 + 1 + 0) / 3)
    assert out["pass@2"].value == pytest.approx((0.5 + 1 + 0) / 3)
    assert (out["pass@4"].value, out["pass@4"].n) == (0.5, 2)
    assert scores([[0.5, 0.2]], k=(1,), solved=0.5)["pass@1"].value == 0.5
    with pytest.raises(ValueError, match="no sample was graded"):
        scores([[nan]])


def test_powers() -> None:
    assert powers(1) == (1,) and powers(7) == (1, 2, 4) and powers(8) == (1, 2, 4, 8) and powers(0) == ()


def test_an_estimate_reads_as_text() -> None:
    assert str(wilson(0, 10)) == "0.000 [0.000, 0.278]" and str(interval([2.0])) == "2.000 (n = 1)"


@pytest.mark.parametrize("n", range(1, 14))
def test_the_interquartile_mean_is_the_trimmed_mean_of_scipy(n: int) -> None:
    x = np.random.default_rng(n).normal(size=n)
    assert interquartile_mean([*x, math.nan]) == pytest.approx(scipy.stats.trim_mean(x, 0.25))
    assert math.isnan(interquartile_mean([]))


def test_its_bootstrap_interval_is_that_of_all_draws() -> None:
    """Of five runs all 3,125 draws can be listed; theirs is the interval that draws at random approach."""
    x = [0.1, 0.35, 0.4, 0.7, 0.9]
    every = [scipy.stats.trim_mean(drawn, 0.25) for drawn in product(x, repeat=5)]
    found = bootstrap_interquartile_mean([*x, math.nan])
    assert (found.value, found.n) == (pytest.approx(scipy.stats.trim_mean(x, 0.25)), 5)
    assert (found.low, found.high) == pytest.approx(np.quantile(every, (0.025, 0.975)), abs=0.01)
    assert found == bootstrap_interquartile_mean(x)  # a stream of its own
    assert math.isnan(bootstrap_interquartile_mean([0.5]).low)


def test_a_performance_profile_is_the_share_of_runs_above_each_score() -> None:
    x, at = [0.2, 0.5, 0.5, math.nan, 0.9], np.array([0.0, 0.2, 0.4, 0.5, 0.9])
    assert profile_performance(x, at).tolist() == [np.mean(np.array([0.2, 0.5, 0.5, 0.9]) > t) for t in at]
    assert np.isnan(profile_performance([], at)).all()


@given(st.integers(2, 6), st.integers(0, 10_000))
def test_p_is_where_the_interval_leaves_0_out(n: int, seed: int) -> None:
    x, y = np.random.default_rng(seed).normal(size=(2, n))
    for paired in (True, False):
        p = p_value(x, y, paired=paired)
        e = difference(x, y, paired=paired, level=1 - p)
        assert min(abs(e.low), abs(e.high)) == pytest.approx(0, abs=1e-6)
    assert math.isnan(p_value([1.0, 1.0], [1.0, 1.0], paired=True)) and math.isnan(p_value([1.0], [2.0], paired=False))


def test_levels_of_several_are_those_of_holm() -> None:
    """By hand: 0.01 of three is read at 1 - 0.05 / 3, 0.03 at 1 - 0.05 / 2 and includes 0, and so 0.04 is too."""
    levels = find_levels([0.04, math.nan, 0.01, 0.03], [0.05] * 4)
    assert levels[2] == pytest.approx(1 - 0.05 / 3) and levels[3] == levels[0] == pytest.approx(1 - 0.05 / 2)
    assert math.isnan(levels[1]) and find_levels([0.2], [0.05]) == [0.95] and find_levels([], []) == []


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=6))
def test_an_interval_leaves_0_out_where_holm_rejects(p: list[float]) -> None:
    """Holm's adjusted p of scipy's neighbour, worked out as its definition says, is at most 0.05 for the same ones."""
    order = sorted(range(len(p)), key=p.__getitem__)
    adjusted = np.maximum.accumulate([(len(p) - i) * p[k] for i, k in enumerate(order)])
    rejected = {k for k, q in zip(order, adjusted, strict=True) if q <= 0.05}
    found = {i for i, level in enumerate(find_levels(p, [0.05] * len(p))) if p[i] <= (1 - level) * (1 + 1e-9)}
    assert rejected == found

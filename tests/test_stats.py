"""Estimators against enumeration, scipy, and closed forms."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from shuhari.stats import bootstrap, cvar, difference, pass_at_k, powers, quantile, scores, wilson


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


def test_bootstrap_of_two_values_has_the_law_of_a_coin() -> None:
    # the mean of two draws from {0, 1} is 0, 1/2, 1 with chances 1/4, 1/2, 1/4
    assert (bootstrap([0, 1], level=0.4).low, bootstrap([0, 1], level=0.4).high) == (0.5, 0.5)
    assert (bootstrap([0, 1], level=0.6).low, bootstrap([0, 1], level=0.6).high) == (0.0, 1.0)


def test_bootstrap_agrees_with_scipy() -> None:
    x = np.random.default_rng(0).exponential(size=60)
    ours = bootstrap(x, draws=20_000)
    theirs = scipy.stats.bootstrap((x,), np.mean, n_resamples=20_000, method="percentile", rng=1).confidence_interval
    assert ours.value == pytest.approx(x.mean())
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_bootstrap_is_seeded_and_leaves_ungraded_out() -> None:
    assert bootstrap([0.1, 0.5, 0.7]) == bootstrap([0.1, math.nan, 0.5, 0.7])
    assert bootstrap([0.1, 0.5, 0.7], seed=1) == bootstrap([0.1, 0.5, 0.7], seed=1)
    one = bootstrap([3.0])
    assert (one.value, one.n) == (3.0, 1) and math.isnan(one.low) and math.isnan(one.high)
    with pytest.raises(ValueError, match="nothing to average"):
        bootstrap([math.nan])


def test_bootstrap_in_pieces_is_still_all_draws() -> None:
    x = np.random.default_rng(0).normal(size=5_000)  # 800 resamples a piece
    e = bootstrap(x, draws=2_000)
    se = x.std() / math.sqrt(len(x))
    assert (e.high - e.low) / (2 * 1.96 * se) == pytest.approx(1, abs=0.1)


def test_pairing_takes_the_common_noise_out() -> None:
    noise = np.random.default_rng(0).normal(size=40)
    a, b = noise, noise + 0.1
    paired, apart = difference(a, b, paired=True), difference(a, b, paired=False)
    assert paired.value == pytest.approx(0.1) == apart.value
    assert (paired.low, paired.high) == pytest.approx((0.1, 0.1))
    assert apart.low < 0 < apart.high


def test_unpaired_difference_agrees_with_scipy() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=30), rng.normal(1, 2, size=50)
    ours = difference(a, b, paired=False, draws=20_000)

    def gap(x, y, axis=-1):
        return y.mean(axis) - x.mean(axis)

    theirs = scipy.stats.bootstrap((a, b), gap, n_resamples=20_000, method="percentile", rng=1).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.03)
    assert ours.n == 30


def test_pairs_must_match() -> None:
    with pytest.raises(ValueError, match="3 and 2"):
        difference([1, 2, 3], [1, 2], paired=True)
    assert math.isnan(difference([1], [2, 3], paired=False).low)


def test_an_interval_covers_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hit = [e.low <= 0.3 <= e.high for e in (bootstrap(rng.random(80) < 0.3, draws=400, seed=i) for i in range(300))]
    assert 0.90 < np.mean(hit) < 0.99


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
    assert str(wilson(0, 10)) == "0.000 [0.000, 0.278]" and str(bootstrap([2.0])) == "2.000 (n = 1)"

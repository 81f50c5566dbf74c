"""Pessimism by hand, and VI-LCB beside value iteration, exact occupancies and a table that one can see through."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binom

from shuhari.methods.theory.lcb_pessimism.pessimism import (
    DATA,
    LCBPessimism,
    choose,
    evaluate,
    find_bonus,
    find_worst,
    iterate_values,
    list_data,
    occupancy,
    rate_arms,
    vi_lcb,
)


def test_one_lucky_sample_fools_the_empirical_best_alone() -> None:
    """N = (1, 10000), means (1, .9), bonus sqrt(1 / N): (0, .89)."""
    values = rate_arms(np.array([1, 10_000]), np.array([1, 9_000]), 1.0)
    assert values["lcb"] == pytest.approx([0, 0.89])
    assert [choose(values[rule]).argmax() for rule in ("lcb", "best", "imitation")] == [1, 0, 1]


def test_what_was_never_played_has_the_largest_bonus() -> None:
    assert find_bonus(np.array([0, 1, 2, 8]), 2.0) == pytest.approx([1, 1, 1, 0.5])
    assert choose(np.array([2.0, 5.0, 5.0])) == pytest.approx([0, 0.5, 0.5])


@pytest.mark.parametrize(("data", "expected"), [("expert", 100 / 99), ("mixed", 1.5), ("uniform", 2.0)])
def test_the_data_have_their_concentrability(data: str, expected: float) -> None:
    for best, rest in list_data(data, 100, 0.2):
        assert sum(best) + sum(rest) == pytest.approx(1)
        assert max(0.8 / best[0], 0.2 / best[1]) == pytest.approx(expected)
    assert data in DATA


def test_imitation_errs_on_the_rare_context_by_enumeration() -> None:
    """The other arm was played more often, or as often (then half the time), at a gap of 1: exact for N = 256."""
    n, worst = 256, 0.0
    for p in np.geomspace(1 / n, 0.5, 7):
        good, wrong = p * (1 - 1 / n), 0.0
        for other in range(12):
            some = binom.pmf(other, n, 1 / n)
            best = binom(n - other, good / (1 - 1 / n))
            wrong += some * (best.cdf(other - 1) + best.pmf(other) / 2)
        worst = max(worst, p * wrong)
    found = find_worst("expert", n, 4000, 3.0, np.random.default_rng(0))[2]
    assert found == pytest.approx(worst, rel=0.1)


def make_table(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(4), (4, 2)), rng.random((4, 2))


def test_vi_lcb_without_a_bonus_is_value_iteration() -> None:
    """Folds whose shares are the exact chances: each is one exact step, so that value and policy converge."""
    moves, means = make_table()
    counts = np.broadcast_to(1000 * moves, (120, *moves.shape))
    policy, values = vi_lcb(counts, np.broadcast_to(1000 * means, (120, 4, 2)), 0.8, 0.0)
    assert (policy == iterate_values(moves, means, 0.8)).all()
    assert values[0] == pytest.approx(means.max(-1))
    assert values[-1] == pytest.approx(evaluate(moves, means, policy, 0.8), abs=1e-6)


def test_values_of_vi_lcb_never_fall_and_stay_below_the_true_ones() -> None:
    moves, means = make_table(1)
    rng = np.random.default_rng(2)
    counts = rng.multinomial(4000, (moves / 8).ravel(), 60).reshape(60, *moves.shape)
    policy, values = vi_lcb(counts, rng.binomial(counts.sum(-1), means), 0.8, 0.05)
    assert all((b >= a).all() for a, b in pairwise(values))
    assert values[-1].max() > 0 and (values[-1] <= evaluate(moves, means, policy, 0.8)).all()


def test_hopeless_bonuses_leave_what_was_played_most() -> None:
    moves, means = make_table(1)
    counts = np.random.default_rng(3).multinomial(50, (moves / 8).ravel(), 5).reshape(5, *moves.shape)
    policy, values = vi_lcb(counts, counts.sum(-1) * means, 0.8, 100.0)
    assert (policy == counts[0].sum(-1).argmax(-1)).all() and not values[-1].any()


def test_the_occupancy_by_its_series() -> None:
    moves, _ = make_table(4)
    policy, start = np.array([0, 1, 1, 0]), np.array([0.1, 0.2, 0.3, 0.4])
    at, series = start, np.zeros(4)
    for t in range(400):
        series += 0.2 * 0.8**t * at
        at = at @ moves[np.arange(4), policy]
    found = occupancy(moves, policy, start, 0.8)
    assert found.sum(-1) == pytest.approx(series) and found[np.arange(4), policy] == pytest.approx(series)


def test_pessimism_has_the_rate_of_the_better_rival_on_all_data() -> None:
    found = LCBPessimism(draws=400, tables=1, transitions=2**14)(0)
    assert found["slope/expert/lcb"] == pytest.approx(-1, abs=0.2) and found["slope/expert/best"] > -0.2
    assert found["slope/mixed/lcb"] == pytest.approx(-0.5, abs=0.1) and found["slope/mixed/imitation"] > -0.1
    assert found["slope/uniform/lcb"] == pytest.approx(-0.5, abs=0.1) and found["slope/uniform/imitation"] > -0.1
    assert all(math.isfinite(x) for x in found.values())


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="largest 512: expected at least 1024"):
        LCBPessimism(largest=512)
    with pytest.raises(ValueError, match="transitions 100: expected at least 16384"):
        LCBPessimism(transitions=100)

"""Mean-variance best responses by hand and beside scipy's optimiser, and what fictitious play with them reaches."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from shuhari.methods.theory.risk_averse_equilibrium.matrix_games import (
    STAG_HUNT,
    RiskAverseEquilibrium,
    add_tremble,
    describe,
    find_moments,
    list_supports,
    measure_utility,
    play,
    respond,
    solve_zero_sum,
)

HUNT = np.array([[[10.0, 1.0], [8.0, 5.0]]])
MOSTLY = np.array([[0.9, 0.1]])


def test_moments_by_hand() -> None:
    mean, covariance = find_moments(HUNT, MOSTLY)
    assert mean[0] == pytest.approx([9.1, 7.7])
    assert covariance[0] == pytest.approx(np.array([[7.29, 2.43], [2.43, 0.81]]))


@pytest.mark.parametrize(("gamma", "expected"), [(0.0, 1.0), (0.144, 1.0), (0.25, 0.36420), (0.2, 0.58025)])
def test_the_best_response_in_closed_form(gamma: float, expected: float) -> None:
    """(1.4 / (1.08 gamma) - 3) / 6 of the first action, 1 up to gamma = .144; .2 is 3.4815 / 6."""
    assert respond(HUNT, MOSTLY, gamma)[0, 0] == pytest.approx(expected, abs=1e-3 if gamma == 0.144 else 1e-5)


def test_a_pure_opponent_has_no_variance() -> None:
    payoffs = np.random.default_rng(0).random((20, 5, 5))
    first = np.tile(np.eye(5)[2], (20, 1))
    assert respond(payoffs, first, 50.0) == pytest.approx(np.eye(5)[payoffs[:, :, 2].argmax(-1)], abs=1e-6)


def test_without_dislike_of_risk_it_is_the_best_action() -> None:
    rng = np.random.default_rng(1)
    payoffs, strategy = rng.random((20, 5, 5)), rng.dirichlet(np.ones(5), 20)
    best = np.einsum("gab,gb->ga", payoffs, strategy).argmax(-1)
    assert respond(payoffs, strategy, 0.0) == pytest.approx(np.eye(5)[best], abs=1e-6)


def test_the_best_response_beside_another_solver() -> None:
    rng = np.random.default_rng(2)
    payoffs, strategy = rng.random((6, 4, 4)), rng.dirichlet(np.ones(4), 6)
    found = measure_utility(payoffs, respond(payoffs, strategy, 4.0), strategy, 4.0)
    for i in range(6):
        mean, covariance = (x[0] for x in find_moments(payoffs[i : i + 1], strategy[i : i + 1]))
        whole = {"type": "eq", "fun": lambda x: x.sum() - 1}
        other = minimize(lambda x, m=mean, c=covariance: 4 * x @ c @ x - x @ m, np.full(4, 0.25), method="SLSQP",
                         bounds=[(0, 1)] * 4, constraints=whole, options={"ftol": 1e-12})  # fmt: skip
        assert found[i] == pytest.approx(-other.fun, abs=1e-6) and found[i] >= -other.fun - 1e-8


def test_variances_by_enumeration() -> None:
    rng = np.random.default_rng(3)
    payoffs, mine, theirs = rng.random((1, 3, 3)), rng.dirichlet(np.ones(3), 1), rng.dirichlet(np.ones(3), 1)
    mean, variance, total = describe(payoffs, mine, theirs)
    averaged = mine[0] @ payoffs[0]  # of one opponent's action
    assert variance[0] == pytest.approx(theirs[0] @ averaged**2 - (theirs[0] @ averaged) ** 2)
    joint = np.outer(mine[0], theirs[0])
    assert total[0] == pytest.approx((joint * payoffs[0] ** 2).sum() - (joint * payoffs[0]).sum() ** 2)
    assert mean[0] == pytest.approx((joint * payoffs[0]).sum()) and total[0] > variance[0]


def test_supports_are_all_subsets_but_the_empty_one() -> None:
    assert len({tuple(row) for row in list_supports(4)}) == 15 and list_supports(4).any(-1).all()


def test_play_without_dislike_of_risk_reaches_the_mixed_nash_of_matching_pennies() -> None:
    pennies = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    mine, theirs = play(pennies, 1 - pennies, np.array([[0.9, 0.1]]), 0.0, 0.0, 2000)
    assert mine[0] == pytest.approx([0.5, 0.5], abs=0.05) and theirs[0] == pytest.approx([0.5, 0.5], abs=0.05)


def test_zero_sum_nash_by_hand() -> None:
    """[[3, -1], [-1, 1]]: each is indifferent if the other plays the first action a third of the time."""
    mine, theirs = solve_zero_sum(np.array([[[3.0, -1.0], [-1.0, 1.0]]]), 0.0)
    assert mine[0] == pytest.approx([1 / 3, 2 / 3]) and theirs[0] == pytest.approx([1 / 3, 2 / 3])


@pytest.mark.parametrize("tremble", [0.0, 0.05, 0.3])
def test_nobody_can_better_a_zero_sum_nash(tremble: float) -> None:
    payoffs = np.random.default_rng(4).random((20, 4, 5))
    mine, theirs = solve_zero_sum(payoffs, tremble)
    for own, here, there in ((payoffs, mine, theirs), (1 - payoffs.swapaxes(1, 2), theirs, mine)):
        means = np.einsum("gab,gb->ga", own, add_tremble(there, tremble))
        assert means.max(1) == pytest.approx(np.einsum("ga,ga->g", means, here), abs=1e-9)


def test_the_stag_hunt_without_tremble_splits_at_two_thirds() -> None:
    """Stag is the better answer to p if p + .1 (1 - p) > .8 p + .5 (1 - p): p > 2/3."""
    for chance, ends in ((0.6, 1), (0.72, 0)):
        mine, _ = play(STAG_HUNT[None], STAG_HUNT[None], np.array([[chance, 1 - chance]]), 0.0, 0.0, 50)
        assert mine[0].argmax() == ends


def test_risk_aversion_lowers_the_variance_and_picks_the_safe_action() -> None:
    found = RiskAverseEquilibrium(games=20, rounds=100)(0)
    for kind in ("symmetric", "zero_sum"):
        assert found[f"variance/{kind}/unseen/rae"] < found[f"variance/{kind}/unseen/nash"]
        assert found[f"mean/{kind}/unseen/rae"] > 0.9 * found[f"mean/{kind}/unseen/nash"]
        assert -1e-6 <= found[f"gap/{kind}/rae"] < 0.02
    assert found["gap/zero_sum/nash"] == pytest.approx(0, abs=1e-8)
    assert found["hare/rae"] > found["hare/nash"] == pytest.approx(0.68)

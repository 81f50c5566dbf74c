"""The best gain against linear programmes, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from shuhari.data import Array
from shuhari.tasks.worlds.average_reward import best_transitions, extended_value_iteration
from shuhari.tasks.worlds.riverswim import RiverSwim, make_tables


def gain_by_lp(r: Array, p: Array) -> float:
    """max of sum x r over occupancies x >= 0 of states and actions that flow back into themselves."""
    S, A = r.shape
    flow = np.repeat(np.eye(S), A, 1) - p.reshape(S * A, S).T
    found = linprog(-r.ravel(), A_eq=np.vstack([flow, np.ones(S * A)]), b_eq=np.r_[np.zeros(S), 1.0])
    return float(-found.fun)


def best_by_lp(p: Array, distance: float, value: Array) -> float:
    """max q value over distributions q with |q - p| summed at most the distance; q = p + up - down."""
    n = len(p)
    up_down = np.r_[np.ones(n), -np.ones(n)]
    found = linprog(
        -np.r_[value, -value], A_ub=np.vstack([np.ones(2 * n), np.hstack([-np.eye(n), np.eye(n)])]),
        b_ub=np.r_[distance, p], A_eq=up_down[None], b_eq=[0.0],
    )  # fmt: skip
    return float(p @ value - found.fun)


def table(seed: int, S: int = 5, A: int = 3) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.random((S, A)), rng.dirichlet(np.full(S, 0.5), (S, A))


@pytest.mark.parametrize("seed", range(4))
def test_a_known_table_has_the_gain_of_the_linear_programme(seed: int) -> None:
    r, p = table(seed)
    gain, act, _ = extended_value_iteration(r, p, np.zeros_like(r), 1e-10)
    assert gain == pytest.approx(gain_by_lp(r, p), abs=1e-8)
    fixed = gain_by_lp(r[np.arange(5), act][:, None], p[np.arange(5), act][:, None])
    assert fixed == pytest.approx(gain, abs=1e-8)  # what it says to do earns that


@pytest.mark.parametrize("seed", range(4))
def test_the_best_transitions_within_a_distance_are_those_of_the_linear_programme(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, value, distance = rng.dirichlet(np.ones(6), 4), rng.normal(size=6), rng.random(4) * 2.2
    q = best_transitions(p, distance, value)
    assert q.min() >= 0 and q.sum(-1) == pytest.approx(1.0)
    assert np.abs(q - p).sum(-1).max() <= distance.max() + 1e-12
    for i in range(4):
        assert np.abs(q[i] - p[i]).sum() <= distance[i] + 1e-12
        assert q[i] @ value == pytest.approx(best_by_lp(p[i], distance[i], value))


def test_best_transitions_by_hand() -> None:
    """Half of 0.6 goes to the best; the worst loses its 0.2, the next 0.1."""
    q = best_transitions(np.array([0.2, 0.3, 0.5]), np.array(0.6), np.array([1.0, 2.0, 3.0]))
    assert q == pytest.approx([0.0, 0.2, 0.8])
    assert best_transitions(np.array([0.2, 0.3, 0.5]), np.array(2.0), np.array([9.0, 2.0, 3.0])).tolist() == [1, 0, 0]


def test_optimism_by_hand() -> None:
    """Two states that stay, paying 0 and 1: within a distance of 0.2 a tenth may leave the first, and none the second
    need do so, so that the best gain is 1; without, the first state's is its own."""
    r, p = np.array([[0.0], [1.0]]), np.eye(2)[:, None, :]
    assert extended_value_iteration(r, p, np.full((2, 1), 0.2), 1e-10)[0] == pytest.approx(1.0)
    with pytest.raises(ArithmeticError, match="50 sweeps"):  # the two never agree
        extended_value_iteration(r, p, np.zeros((2, 1)), 1e-10, limit=50)


def test_riverswim_by_detailed_balance() -> None:
    """Always right: a birth and death chain with weights 1, 12, 84, 588, 4116, 3601.5."""
    assert RiverSwim().gain == pytest.approx(3601.5 / 8402.5, abs=1e-8)
    p, r = make_tables(6)
    assert p.sum(-1) == pytest.approx(1.0) and gain_by_lp(r, p) == pytest.approx(3601.5 / 8402.5, abs=1e-8)
    assert p[2, 1].tolist() == pytest.approx([0, 0.05, 0.6, 0.35, 0, 0]) and p[2, 0, 1] == 1

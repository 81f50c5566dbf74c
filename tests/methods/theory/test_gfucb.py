"""Joint optimism beside LinUCB, greedy fits, least squares on the raw data, and the search of all arms."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from shuhari.methods.theory.gfucb.multitask_bandit import GFUCB, Problem, add_up, choose_arms, fit, run


def make_data(seed: int, m: int = 2, p: int = 3, k: int = 2, n: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Features [M, n, P, k] and rewards [M, n]."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, n, p, k)), rng.standard_normal((m, n))


def sum_up(features: np.ndarray, rewards: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    m, _, p, k = features.shape
    z = features.reshape(m, -1, p * k)
    gram = np.einsum("mni,mnj->mij", z, z) + ridge * np.eye(p * k)
    return gram.reshape(1, m, p, k, p, k), np.einsum("mni,mn->mi", z, rewards).reshape(1, m, p, k)


def test_fits_are_least_squares_on_the_raw_data() -> None:
    features, rewards = make_data(0)
    found = fit(*sum_up(features, rewards, 1e-9))
    errors = np.zeros(3)
    for i, q in product(range(2), range(3)):
        errors[q] += np.linalg.lstsq(features[i, :, q], rewards[i])[1].sum()
    best = errors.argmin()
    assert found["best"][0] == best
    for q in range(3):
        residual = 0.0
        for i in range(2):
            fitted = features[i, :, best] @ np.linalg.lstsq(features[i, :, best], rewards[i])[0]
            weights = np.linalg.lstsq(features[i, :, q], fitted)[0]
            residual += ((features[i, :, q] @ weights - fitted) ** 2).sum()
            assert found["weights"][0, q, i] == pytest.approx(weights, abs=1e-6)
        assert found["residual"][0, q] == pytest.approx(residual, abs=1e-6)


def test_the_bonus_of_a_known_representation_is_the_maximum_over_the_set() -> None:
    """max of sum w_i x_i with sum (w_i - w^_i) V_i (w_i - w^_i) <= beta; no random point of the set is above it, and
    the point of Cauchy and Schwarz reaches it."""
    features, rewards = make_data(1, p=1, k=3)
    gram, target = sum_up(features, rewards, 0.1)
    found, rng, beta = fit(gram, target), np.random.default_rng(2), 0.7
    x, own = rng.standard_normal((2, 3)), gram[0, :, 0, :, 0]
    means = np.einsum("mk,mk->m", found["weights"][0, 0], x)[None, None, :, None]
    widths = np.einsum("mk,mkl,ml->m", x, found["inverse"][0, 0], x)[None, None, :, None]
    top = add_up(means, widths, np.zeros((1, 1, 1, 2), int), np.full((1, 1, 1), beta)).item()

    def value(step: np.ndarray) -> float:
        step *= np.sqrt(beta / np.einsum("mk,mkl,ml->", step, own, step))
        return float(((found["weights"][0, 0] + step) * x).sum())

    assert max(value(rng.standard_normal((2, 3))) for _ in range(2000)) < top
    assert value(np.einsum("mkl,ml->mk", found["inverse"][0, 0], x)) == pytest.approx(top)


def test_arms_are_those_of_a_search_of_all() -> None:
    rng, missed = np.random.default_rng(3), 0
    for _ in range(40):
        means, widths = rng.standard_normal((1, 2, 3, 4)), rng.exponential(1, (1, 2, 3, 4))
        budget = np.array([[rng.uniform(0, 4), rng.uniform(-1, 4)]])
        every = np.array(list(product(range(4), repeat=3)))[None, None]
        whole = add_up(means, widths, np.repeat(every, 2, 1), np.maximum(budget, 0)[..., None])
        whole = np.where(budget[..., None] >= 0, whole, -np.inf)
        best = every[0, 0, whole.max(1).argmax()]
        missed += (choose_arms(means, widths, budget)[0] != best).any()
    assert missed <= 2


def test_a_representation_out_of_the_set_is_never_followed() -> None:
    means = np.array([[[[1.0, 0.0]], [[0.0, 9.0]]]])
    assert choose_arms(means, np.ones((1, 2, 1, 2)), np.array([[0.5, -0.1]])).tolist() == [[0]]
    assert choose_arms(means, np.ones((1, 2, 1, 2)), np.array([[0.5, 0.1]])).tolist() == [[1]]


def make_problem(seed: int, m: int, p: int, rounds: int = 60) -> Problem:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((rounds, m, 5, p, 3))
    values = np.einsum("tmak,mk->tma", features[:, :, :, 0], rng.standard_normal((m, 3)))
    return Problem(features, values, 0.5 * rng.standard_normal((rounds, m)), 0.5)


def test_one_task_with_known_features_is_linucb() -> None:
    problem, ridge = make_problem(4, 1, 1), 0.1
    chosen, _ = run(problem, 1, 2.0, ridge)
    gram, target, beta = ridge * np.eye(3), np.zeros(3), 2.0 * 0.25 * 3
    for t in range(60):
        x, inverse = problem.features[t, 0, :, 0], np.linalg.inv(gram)
        arm = (x @ inverse @ target + np.sqrt(beta * np.einsum("ak,kl,al->a", x, inverse, x))).argmax()
        assert chosen[t, 0] == arm
        gram += np.outer(x[arm], x[arm])
        target += x[arm] * (problem.values[t, 0, arm] + problem.noise[t, 0])


def test_two_tasks_with_known_features_share_a_bonus_of_twice_the_size() -> None:
    """The best of all 25 pairs of arms, of means and sqrt(beta sum of widths), beta = scale noise^2 M k."""
    problem, ridge, same = make_problem(7, 2, 1), 0.1, 0
    chosen, _ = run(problem, 2, 2.0, ridge)
    gram, target, beta = np.stack([ridge * np.eye(3)] * 2), np.zeros((2, 3)), 2.0 * 0.25 * 2 * 3
    for t in range(60):
        x, inverse = problem.features[t, :, :, 0], np.linalg.inv(gram)
        mean = np.einsum("mak,mkl,ml->ma", x, inverse, target)
        width = np.einsum("mak,mkl,mal->ma", x, inverse, x)
        value = mean[0][:, None] + mean[1] + np.sqrt(beta * (width[0][:, None] + width[1]))
        same += np.unravel_index(value.argmax(), value.shape) == tuple(chosen[t])
        z = x[[0, 1], chosen[t]]
        gram += z[:, :, None] * z[:, None]
        target += (problem.values[t, [0, 1], chosen[t]] + problem.noise[t])[:, None] * z
    assert same >= 58


def test_a_set_of_no_size_is_greedy_on_the_joint_fit() -> None:
    problem = make_problem(5, 3, 4, rounds=30)
    chosen, _ = run(problem, 3, 0.0, 0.1)
    for t in range(5, 30):
        at = (np.arange(t)[:, None], np.arange(3), chosen[:t])
        rewards = problem.values[at] + problem.noise[:t]
        found = fit(*sum_up(problem.features[at].swapaxes(0, 1), rewards.T, 0.1))
        q = found["best"][0]
        expected = np.einsum("mak,mk->ma", problem.features[t, :, :, q], found["weights"][0, q]).argmax(-1)
        assert (chosen[t] == expected).all()


def test_groups_of_one_learn_as_if_alone() -> None:
    problem = make_problem(6, 2, 3, rounds=20)
    alone, _ = run(problem.keep(1), 1, 1.0, 0.1)
    assert (run(problem, 1, 1.0, 0.1)[0][:, :1] == alone).all()


def test_tasks_that_share_a_representation_have_less_regret() -> None:
    found = GFUCB(worlds=3, rounds=150)(0)
    assert found["regret/joint/10"] < found["regret/independent"] < 0.3 * found["regret/random"]
    with pytest.raises(ValueError, match="tasks 1: expected at least 2"):
        GFUCB(tasks=1)

"""The mass balance by hand, against autograd and a second derivation, and the signs that it proves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from shuhari.config.build import make_component
from shuhari.methods.rlvr.brorl.mass_balance import MassBalance, balance, softmax, step

P = np.array([0.4, 0.1, 0.3, 0.2])
RIGHT = np.array([True, True, False, False])
SAMPLED = np.array([True, False, True, False])


def case(seed: int, actions: int = 9) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    right = np.arange(actions) < rng.integers(1, actions)
    return softmax(rng.normal(0, 2, actions)), rng.permutation(right), rng.random(actions) < rng.random()


def mass(logits: np.ndarray, right: np.ndarray) -> float:
    return float(torch.tensor(logits).softmax(0)[torch.tensor(right)].sum())


def test_by_hand() -> None:
    """S = .4 - .3 = .1, Q = .5: .5 x .9 x .16, .5 x 1.1 x .09, .1 x (.5 x .04 - .5 x .01)."""
    assert balance(P, RIGHT, SAMPLED) == pytest.approx((0.072, 0.0495, 0.0015))
    assert sum(balance(P, RIGHT, SAMPLED)) == pytest.approx(0.123)


@pytest.mark.parametrize("rewards", [(1.0, -1.0), (1.0, 0.0), (0.3, -2.0)])
@pytest.mark.parametrize("seed", range(5))
def test_the_step_is_the_gradient_of_the_surrogate_and_the_terms_are_the_change_of_mass(
    seed: int, rewards: tuple[float, float]
) -> None:
    p, right, sampled = case(seed)
    gain = np.where(right, *rewards) * sampled
    z = torch.tensor(np.log(p), requires_grad=True)
    (torch.tensor(gain) * z.softmax(0)).sum().backward()  # type: ignore[no-untyped-call]
    dz = step(p, gain)
    assert z.grad is not None and np.allclose(z.grad.numpy(), dz, atol=1e-14)
    z.grad = None
    z.softmax(0)[torch.tensor(right)].sum().backward()  # type: ignore[no-untyped-call]
    assert float(z.grad.numpy() @ dz) == pytest.approx(sum(balance(p, right, sampled, rewards)), abs=1e-14)


def test_the_rest_is_of_second_order() -> None:
    """Halving the rate quarters what the balance leaves unsaid."""
    for seed in range(5):
        p, right, sampled = case(seed)
        dz, z = step(p, np.where(right, 1.0, -1.0) * sampled), np.log(p)
        first = sum(balance(p, right, sampled))
        rest = [abs(mass(z + eta * dz, right) - mass(z, right) - eta * first) for eta in (1e-2, 5e-3)]
        assert rest[0] < 1e-4 and rest[1] == pytest.approx(rest[0] / 4, rel=0.02, abs=1e-13)


def test_what_was_sampled_never_costs_mass() -> None:
    lost = 0
    for seed in range(300):
        p, right, sampled = case(seed)
        a, b, out = balance(p, right, sampled)
        assert a >= 0 and b >= 0
        everything = balance(p, right, np.ones_like(right))
        assert everything[2] == 0 and sum(everything) >= 0
        lost += a + b + out < 0
    assert lost, "no case in which what was left out costs mass: the test shows nothing"


def test_more_draws_than_matter_follow_the_expected_step() -> None:
    """At ten million draws a step the mass is that of the exact policy gradient, dz = p (R - E[R])."""
    found = MassBalance(actions=6, right=2, samples=(1, 10_000_000), steps=5, rate=0.5)(0)
    z, reward = np.zeros(6), np.where(np.arange(6) < 2, 1.0, -1.0)
    for _ in range(5):
        p = np.exp(z) / np.exp(z).sum()
        z = z + 0.5 * p * (reward - p @ reward)
    assert found["mass/10000000"] == pytest.approx(mass(z, reward > 0), abs=1e-3)
    assert found["lost/10000000"] == found["fell/10000000"] == 0  # equal right actions grow together
    assert found["falls"] == found["lost/1"] - found["lost/10000000"]


def test_distinct_actions_count_once_as_in_the_one_step_analysis() -> None:
    """Every action comes in ten million draws, and is summed: dz = rate / N p (R - E[R]), the exact gradient again."""
    found = MassBalance(actions=6, right=2, samples=(1, 10_000_000), steps=5, rate=0.5e7, distinct=True)(0)
    z, reward = np.zeros(6), np.where(np.arange(6) < 2, 1.0, -1.0)
    for _ in range(5):
        z = z + 0.5 * step(np.exp(z) / np.exp(z).sum(), reward)
    assert found["mass/10000000"] == pytest.approx(mass(z, reward > 0), abs=1e-12)
    once = MassBalance(actions=2, right=1, samples=(1, 2), steps=1, distinct=True)(3)
    # the one draw at p = 1/2 counts p = 1/2 of what it counts as a mean over draws: logits move by (1/4, -1/4)
    assert once["mass/1"] == pytest.approx(1 / (1 + math.exp(-0.5)))


def test_one_draw_of_a_wrong_action_moves_as_computed() -> None:
    """Two actions, one step: a right draw moves the logits by (1/2, -1/2), a wrong one the same way: both raise Q."""
    found = MassBalance(actions=2, right=1, samples=(1, 2), steps=1)(3)
    assert found["mass/1"] == pytest.approx(1 / (1 + math.exp(-1)))
    assert found["lost/1"] == found["fell/1"] == 0


def test_a_seed_is_its_numbers_and_mistakes_are_named() -> None:
    made = make_component("analysis", {"use": "mass_balance", "steps": 20})
    assert made(1) == made(1) != made(2)
    for table, told in (
        ({"right": 128}, "right is 128"),
        ({"samples": [32, 8]}, "rising"),
    ):
        with pytest.raises(ValueError, match=told):
            make_component("analysis", {"use": "mass_balance", **table})

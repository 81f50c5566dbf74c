"""Off-policy bandits: where each method must end, by solving for its fixed point."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arms import apart
from shuhari.lab.claims.claim import read
from shuhari.methods.rlvr.copg.off_policy_bandit import OffPolicyBandit

SMALL = OffPolicyBandit(steps=400)


def test_the_contrast_ends_at_the_optimum_and_the_gradients_do_not() -> None:
    found = SMALL(0)
    assert found["distance/copg"] < 1e-3 and found["distance/pg"] > 0.1 and found["distance/pg_baseline"] > 0.1
    assert found["gain"] == pytest.approx(
        min(found["distance/pg"], found["distance/pg_baseline"]) - found["distance/copg"]
    )


def test_what_is_learnt_is_the_regularised_optimum_for_any_sampling() -> None:
    weight = np.exp(np.array(SMALL.rewards) / SMALL.beta)
    for mu in ((1 / 3, 1 / 3, 1 / 3), (0.7, 0.2, 0.1)):
        learnt = OffPolicyBandit(mu=mu, steps=600).learn("copg", 1)
        assert learnt.tolist() == pytest.approx((weight / weight.sum()).tolist(), abs=1e-3)


@pytest.mark.parametrize(("method", "baseline"), [("pg", False), ("pg_baseline", True)])
def test_an_unweighted_gradient_ends_where_its_expectation_is_zero(method: str, baseline: bool) -> None:
    """sum_a mu_a (R_a - b - beta log(pi_a / ref_a)) (e_a - pi) = 0, solved by descent on the expectation."""
    mu, r = torch.tensor(SMALL.mu, dtype=torch.float64), torch.tensor(SMALL.rewards, dtype=torch.float64)
    z, b = torch.zeros(3, dtype=torch.float64), float(mu @ r) if baseline else 0.0
    for _ in range(5000):
        pi = z.softmax(0)
        x = mu * (r - b - SMALL.beta * (pi * 3).log())
        z = z + 0.2 * (x - x.sum() * pi)
    learnt = OffPolicyBandit(steps=1500, pairs=128, lr=0.2).learn(method, 0)
    assert learnt.tolist() == pytest.approx(z.softmax(0).tolist(), abs=0.02)


def test_a_seed_is_its_numbers() -> None:
    few = OffPolicyBandit(steps=20)
    assert few(3) == few(3) != few(4)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ValueError, match="mu is"):
        OffPolicyBandit(mu=(0.5, 0.5, 0.0))
    with pytest.raises(ValueError, match="3 rewards and a mu of 2"):
        OffPolicyBandit(mu=(0.5, 0.5))
    with pytest.raises(ValueError, match="above 0"):
        OffPolicyBandit(beta=0.0)


def test_it_is_compared_with_a_baseline_of_its_own_pairs() -> None:
    claim = read("rlvr/copg")
    term, centre = "part.policy.terms.loss", "collect.advantage.centre"
    assert apart("method", "baseline", claim.arms) == {term}
    assert apart("method", "group", claim.arms) == {term, centre}
    assert apart("baseline", "group", claim.arms) == {centre}
    compared = {c.rule.against: c.rule.role for c in claim.checks if c.trains and c.rule.arm == "method"}
    assert compared["group"] == compared["fast"] == "rival"

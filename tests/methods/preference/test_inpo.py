"""INPO by its closed form: the minimum of its loss over all pairs is the next policy of mirror descent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.config.recipe import load
from shuhari.needs import Need
from shuhari.objectives.preference import Preference
from shuhari.testing import context

LIVE, FIRST, LAST = (Need((r,), "log_prob", live=r == "policy") for r in ("policy", "reference", "previous"))


def find_next(first: Tensor, last: Tensor, wins: Tensor, eta: float, tau: float) -> Tensor:
    """pi ~ first^(tau / eta) last^(1 - tau / eta) exp(P(. > last) / eta), Zhang et al. 2024, equation 5."""
    share = tau / eta
    return (share * first.log() + (1 - share) * last.log() + wins @ last / eta).softmax(0)


def total_loss(theta: Tensor, first: Tensor, last: Tensor, wins: Tensor, eta: float, tau: float) -> Tensor:
    """The loss over all pairs (better, worse), as often as two answers of the last policy come so."""
    n = len(theta)
    new = theta.log_softmax(0)[:, None]
    columns = {"mask": torch.ones(n, 1, dtype=torch.bool), "logp": last.log()[:, None], LIVE.key: new}
    columns |= {FIRST.key: first.log()[:, None], LAST.key: last.log()[:, None]}
    index = torch.tensor([[i, j] for i in range(n) for j in range(n)])
    term = Preference(form="ipo", beta=eta, references={"reference": tau / eta, "previous": 1 - tau / eta})
    loss, _ = term(Batch(columns).link("pairs", index), context(count=1))
    often = torch.stack([last[i] * last[j] * wins[i, j] for i, j in index.tolist()])
    return (often * loss).sum()


def make_game(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    skew = rng.normal(size=(n, n))
    wins = torch.tensor(1 / (1 + np.exp(skew.T - skew)))
    first, last = (torch.tensor(rng.dirichlet(np.ones(n))) for _ in range(2))
    return first, last, wins


@pytest.mark.parametrize(("n", "eta", "tau"), [(2, 1.0, 0.3), (4, 0.5, 0.1), (5, 2.0, 2.0), (3, 0.7, 0.0)])
def test_the_loss_is_least_at_the_next_policy_of_mirror_descent(n: int, eta: float, tau: float) -> None:
    first, last, wins = make_game(n, seed=n)
    theta = find_next(first, last, wins, eta, tau).log().requires_grad_()
    least = total_loss(theta, first, last, wins, eta, tau)
    (gradient,) = torch.autograd.grad(least, theta)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)
    for x in torch.randn(20, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0)):
        assert total_loss(theta.detach() + 0.1 * (x - x.mean()), first, last, wins, eta, tau) > least


def test_two_answers_by_hand() -> None:
    """The first of two is preferred with 0.8, both policies are uniform, eta is 1: sigma(0.3)."""
    half = torch.full((2,), 0.5, dtype=torch.float64)
    wins = torch.tensor([[0.5, 0.8], [0.2, 0.5]], dtype=torch.float64)
    assert find_next(half, half, wins, 1.0, 0.4)[0].item() == pytest.approx(0.57444, abs=1e-5)


def test_repeated_rounds_end_at_the_policy_that_no_other_is_preferred_to() -> None:
    """Of the game with a price tau on the KL to the first policy: pi ~ first exp(P(. > pi) / tau)."""
    first, pi, wins = make_game(5, seed=1)
    for _ in range(400):
        pi = find_next(first, pi, wins, 2.0, 0.4)
    torch.testing.assert_close(pi, (first.log() + wins @ pi / 0.4).softmax(0), atol=1e-8, rtol=0)


def test_the_recipe_has_this_loss() -> None:
    term = load("preference/inpo").resolved["rl"]["part"]["policy"]["terms"]["loss"]
    assert (term["form"], term["beta"], dict(term["references"])) == ("ipo", 0.5, {"reference": 0.2, "previous": 0.8})


@pytest.mark.parametrize("shares", [{"reference": 0.3}, {"reference": 0.8, "previous": 0.4}])
def test_shares_that_do_not_sum_to_one_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected shares that sum to 1"):
        Preference(references=shares)

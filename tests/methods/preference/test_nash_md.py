"""Nash-MD by enumeration: its expected gradient, TRL's loss, the equilibrium of ever smaller steps, and where equal
steps end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import root
from torch import Tensor

from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.kernel.reduce import reduced, weights
from shuhari.models.product import Product
from shuhari.needs import Need
from shuhari.objectives.divergence import Divergence
from shuhari.testing import context, groups

GAME = torch.tensor([[0.5, 0.9, 0.2], [0.1, 0.5, 0.8], [0.8, 0.2, 0.5]], dtype=torch.float64)  # round in a circle
LIVE, NOW, FIRST = (Need((r,), "log_prob", live=live) for r, live in (("policy", True), ("policy", False),
                                                                    ("reference", False)))  # fmt: skip
STAGE = build_stage(load("preference/nash_md").stages[-1], {})
TAU = STAGE.collect["kl_in_reward"].beta
OF = load("preference/nash_md").stages[-1]["models"]["mixture"]["of"]


def mix(pi: Tensor, first: Tensor, share: float) -> Tensor:
    """Log-probabilities of pi^(1 - share) first^share, normalised."""
    return ((1 - share) * pi + share * first).log_softmax(-1)


def draw(seed: int, n: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    pi, first = torch.randn(2, n, generator=g, dtype=torch.float64).log_softmax(-1)
    return pi, first


def find_gradient(theta: Tensor, first: Tensor, wins: Callable[[Tensor], Tensor], n: int) -> Tensor:
    """The expected gradient of the recipe's own components over all groups of n answers of one token."""
    new = theta.log_softmax(-1)
    loss_term = STAGE.learners["main"].parts["policy"].terms["loss"]
    total = torch.zeros((), dtype=torch.float64)
    for group in np.ndindex(*(len(theta),) * n):
        answers = torch.tensor(group)
        batch = groups([wins(answers).tolist()], lengths=1, logp=0.0)
        batch = batch.put({"reward": batch["reward"].double()})
        batch = batch.put({need.key: x[answers][:, None] for need, x in ((NOW, new.detach()), (FIRST, first))})
        for transform in STAGE.collect.values():
            batch = transform(batch, context())
        batch = batch.put({LIVE.key: new[answers][:, None]})
        loss, _ = loss_term.objective(batch, context())
        chance = new.detach()[answers].sum().exp()
        total = total + chance * reduced(loss, weights(torch.ones_like(loss), batch, loss_term.reduce))
    (gradient,) = torch.autograd.grad(total, theta)
    return gradient


@pytest.mark.parametrize("seed", range(3))
def test_the_expected_gradient_is_that_of_the_regularised_win_rate(seed: int) -> None:
    """Munos et al. 2023, section 7: E[(P(y > mixture) - 1/2 - tau log pi / first) grad log pi], the mixture held."""
    theta, first = draw(seed)
    theta = theta.clone().requires_grad_()
    against = GAME @ mix(theta.detach(), first, OF["reference"]).exp()
    new = theta.log_softmax(-1)
    score = against - 0.5 - TAU * (new.detach() - first)
    (wanted,) = torch.autograd.grad(-(new.detach().exp() * score * new).sum(), theta)
    found = find_gradient(theta, first, lambda answers: against[answers], n=3)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


def test_with_the_term_of_kl_it_is_the_loss_of_trl() -> None:
    """Value aside, the gradient of beta (log-ratio x log pi).sum(1) - (p - 1/2) log pi.sum(1), mean over answers."""
    g = torch.Generator().manual_seed(5)
    new = (-torch.rand(4, 6, generator=g, dtype=torch.float64)).requires_grad_()
    first, won = -torch.rand(4, 6, generator=g, dtype=torch.float64), torch.rand(4, generator=g, dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor([6, 2, 4, 1])[:, None]
    score = (won - 0.5) * (new * mask).sum(1)
    kl = ((new.detach() - first) * new * mask).sum(1)
    (wanted,) = torch.autograd.grad((0.3 * kl - score).mean(), new)

    advantage = (won[:, None] - 0.5) * mask
    batch = Batch({"mask": mask, "logp": first, LIVE.key: new, FIRST.key: first, "advantage": advantage})
    loss_term = STAGE.learners["main"].parts["policy"].terms["loss"]
    total = torch.zeros((), dtype=torch.float64)
    for objective, weight in ((loss_term.objective, 1.0), (Divergence(form="k1"), 0.3)):
        loss, _ = objective(batch.put({n.key: new for n in objective.needs if n.live}), context(count=4))
        total = total + weight * reduced(loss, weights(torch.ones_like(loss), batch, loss_term.reduce))
    (found,) = torch.autograd.grad(total, new)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


class Fixed:
    """A policy of one state by its log-probabilities, as a member of a product."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def parameters(self) -> Tensor:
        return self.logits[None]


def test_the_role_is_the_mixture_of_the_logits_with_the_shares_of_the_recipe() -> None:
    """By hand, for policy (1/2, 1/4, 1/4) and start (1/4, 1/4, 1/2); and whatever is added to a member's logits."""
    assert OF == {"policy": 0.875, "reference": 0.125}
    policy = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
    first = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64).log()
    logits, keep = Product(of=OF)._combine([policy + 3.0, first - 1.0], -1e30)
    torch.testing.assert_close(logits.log_softmax(-1), mix(policy, first, 0.125))
    powers = torch.tensor([2**-1.125, 2**-2.0, 2**-1.875], dtype=torch.float64)  # 0.875 and 0.125 of the exponents
    torch.testing.assert_close(logits.softmax(-1), powers / powers.sum())
    assert bool(keep.all())


def solve(first: Tensor, tau: float, share: float) -> Tensor:
    """By scipy: pi ~ first exp(P(. > mixture of pi) / tau); at share 0 the equilibrium of the regularised game."""
    game, start = GAME.numpy(), first.numpy()

    def miss(logits: Any) -> Any:
        pi = torch.from_numpy(logits).log_softmax(-1)
        best = start + game @ mix(pi, first, share).exp().numpy() / tau
        return logits - (best - best.mean())

    found = root(miss, start - start.mean(), tol=1e-12)
    assert found.success
    return torch.from_numpy(found.x).log_softmax(-1)


def find_gap(pi: Tensor, first: Tensor, tau: float) -> float:
    best = tau * (first + GAME @ pi.exp() / tau).logsumexp(-1)
    return float(best - (0.5 - tau * (pi.exp() * (pi - first)).sum()))


@pytest.mark.parametrize("seed", range(3))
def test_steps_that_grow_smaller_end_at_the_equilibrium(seed: int) -> None:
    """Theorem 1, with eta = 2 / (tau (t + 2)): the KL to the equilibrium is at most 8 / (tau^2 (t + 1))."""
    tau = 0.3
    _, first = draw(seed)
    wanted = solve(first, tau, 0.0)
    assert find_gap(wanted, first, tau) == pytest.approx(0, abs=1e-12)
    pi = first
    for t in range(3000):
        eta = 2 / (tau * (t + 2))
        mixture = mix(pi, first, eta * tau)
        pi = (mixture + eta * GAME @ mixture.exp()).log_softmax(-1)
        assert float((wanted.exp() * (wanted - pi)).sum()) <= 8 / (tau**2 * (t + 2))
    torch.testing.assert_close(pi.exp(), wanted.exp(), atol=2e-3, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_equal_steps_and_the_gradient_of_the_recipe_end_beside_it(seed: int) -> None:
    """Both at pi ~ first exp(P(. > mixture) / tau) with share eta tau: not the equilibrium, unless the share is 0."""
    tau, share = 0.3, 0.125
    _, first = draw(seed)
    wanted, pi = solve(first, tau, share), first
    for _ in range(2000):
        mixture = mix(pi, first, share)
        pi = (mixture + share / tau * GAME @ mixture.exp()).log_softmax(-1)
    torch.testing.assert_close(pi.exp(), wanted.exp(), atol=1e-9, rtol=0)
    against = GAME @ mix(wanted, first, share).exp()
    score = against - 0.5 - tau * (wanted - first)
    gradient = wanted.exp() * (score - (wanted.exp() * score).sum())
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)
    assert find_gap(wanted, first, tau) > 1e-5


def test_the_share_moves_the_end_by_hand() -> None:
    """All of it is the best reply to the start, none is the equilibrium; the gap between them by hand at tau 1."""
    first = torch.full((3,), 1 / 3, dtype=torch.float64).log()
    best = (first + GAME @ first.exp()).log_softmax(-1)
    torch.testing.assert_close(solve(first, 1.0, 1.0), best)
    gaps = [find_gap(solve(first, 0.1, share), first, 0.1) for share in (0.0, 0.125, 0.5, 1.0)]
    assert gaps == sorted(gaps) and gaps[0] == pytest.approx(0, abs=1e-12)

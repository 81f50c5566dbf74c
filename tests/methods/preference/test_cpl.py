"""CPL: its loss by hand, and in a small world the policy that minimises it, which is the best one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.methods.preference.cpl.contrastive import Contrastive
from shuhari.methods.preference.cpl.soft_advantages import SoftAdvantages, find_advantages
from shuhari.needs import Need
from shuhari.objectives.preference import Preference
from shuhari.tasks.bandit import Bandit
from shuhari.tasks.gridworld import Gridworld
from shuhari.testing import check_objective, context

LIVE, FIRST = Need(("policy",), "log_prob", live=True), Need(("reference",), "log_prob")


def make_batch(logp: Tensor, index: Tensor | None = None) -> Batch:
    """Segments [M, T] of log-probabilities, a decision a row; by default each two are a pair, the first preferred."""
    M, T = logp.shape
    columns = {"mask": torch.ones(M * T, 1, dtype=torch.bool), "episode": torch.arange(M).repeat_interleave(T)}
    end = torch.arange(M) * T + T - 1
    pairs = end.view(-1, 2) if index is None else end[index]
    return Batch({**columns, LIVE.key: logp.reshape(-1, 1)}).link("pairs", pairs)


def test_the_pair_of_the_catalogue() -> None:
    """alpha 0.1, sums of -2 (preferred) and -6, lambda 0.5: softplus(-0.3 + 0.2) = 0.64440; the pair reversed has
    softplus(-0.1 + 0.6) = 0.97408."""
    logp = torch.tensor([[-0.5, -1.5], [-4.0, -2.0], [-4.0, -2.0], [-0.5, -1.5]], dtype=torch.float64)
    loss, info = check_objective(Contrastive(alpha=0.1, bias=0.5), make_batch(logp), context())
    assert loss.tolist() == pytest.approx([0.64440, 0.97408], abs=1e-5)
    assert info["accuracy"].tolist() == [1.0, 0.0] and info["margin"].tolist() == pytest.approx([0.4, -0.4])


def test_the_discount_counts_from_the_beginning_of_a_segment() -> None:
    """gamma 1/2: -1 - 2/2 - 4/4 = -3 and -1 - 0 - 0 = -1; alpha and lambda 1: softplus(-1 + 3) = 2.12693."""
    logp = torch.tensor([[-1.0, -2.0, -4.0], [-1.0, 0.0, 0.0]])
    loss, _ = Contrastive(alpha=1.0, gamma=0.5)(make_batch(logp), context())
    assert loss.item() == pytest.approx(2.12693, abs=1e-5)


def test_one_decision_and_log_ratios_are_dpo() -> None:
    g = torch.Generator().manual_seed(0)
    new, first = torch.randn(2, 8, 1, generator=g, dtype=torch.float64)
    batch = make_batch(new - first)
    loss, _ = Contrastive(alpha=0.3)(batch, context())
    batch = make_batch(new).put({FIRST.key: first})
    expected, _ = Preference(beta=0.3)(batch, context(count=1))
    torch.testing.assert_close(loss, expected)


def test_several_decisions_at_lambda_1_are_the_pairs_of_episodes() -> None:
    logp = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batch = make_batch(logp)
    loss, _ = Contrastive(alpha=0.3)(batch, context())
    expected, _ = Preference(beta=0.3, reference_free=True, level="episode")(batch, context(count=1))
    torch.testing.assert_close(loss, expected)


def soft_policy(world: Gridworld, gamma: float, temperature: float) -> Tensor:
    """log pi* [S, A] by policy iteration: exact values of a policy from linear equations, then its soft improvement."""
    S, A = world.R.shape
    pi = np.full((S, A), 1 / A)
    for _ in range(60):
        reward = (pi * (world.R - temperature * np.log(pi))).sum(1)
        v = np.linalg.solve(np.eye(S) - gamma * np.einsum("sa,sat->st", pi, world.P), reward)
        q = (world.R + gamma * world.P @ v) / temperature
        pi = np.exp(q - q.max(1, keepdims=True))
        pi /= pi.sum(1, keepdims=True)
    return torch.from_numpy(np.log(pi))


WORLD = Gridworld(cells=("S.", "HG"), slip=0.1, hole=-0.3)


def test_advantages_are_those_of_the_best_policy_with_a_price_on_entropy() -> None:
    advantage = torch.from_numpy(find_advantages(WORLD.P, WORLD.R, 0.9, 0.2))
    torch.testing.assert_close(advantage / 0.2, soft_policy(WORLD, 0.9, 0.2), atol=1e-7, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_least_at_the_best_policy(seed: int) -> None:
    """All pairs of the walks of two moves from both cells, each as often as the sums of advantages say: no gradient is
    left at alpha log pi = advantage, and any other policy has a larger loss."""
    alpha = 0.2
    best = soft_policy(WORLD, 0.9, alpha)
    moves = list(itertools.product(range(2), range(4), range(2), range(4)))  # (s, a, s', a'): both cells are not ends
    walks = torch.tensor([[(s, a), (t, b)] for s, a, t, b in moves])
    index = torch.tensor(list(itertools.permutations(range(0, len(moves), 3), 2)))

    def total(theta: Tensor, often: Tensor) -> Tensor:
        logp = theta.log_softmax(1)[walks[..., 0], walks[..., 1]]
        return (often * Contrastive(alpha=alpha)(make_batch(logp, index), context())[0]).sum()

    worth = alpha * best[walks[..., 0], walks[..., 1]].sum(1)
    often = torch.sigmoid(worth[index[:, 0]] - worth[index[:, 1]])
    theta = best.clone().requires_grad_()
    least = total(theta, often)
    (gradient,) = torch.autograd.grad(least, theta)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-10, rtol=0)
    other = best + torch.randn(best.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert total(other, often) > least


def test_a_task_without_tables_is_refused() -> None:
    class Nothing:
        def read(self, task: object, seed: int) -> dict[str, Tensor]:
            return {}

    with pytest.raises(ValueError, match="has no tables of its dynamics"):
        SoftAdvantages(data=Nothing()).read(Bandit(), 0)


def test_the_recipe_clones_first_and_has_this_loss() -> None:
    first, last = (build_stage(table, {}) for table in load("preference/cpl").stages)
    (cloned,) = first.learners["main"].parts["policy"].terms
    term = last.learners["main"].parts["policy"].terms["contrastive"].objective
    assert cloned == "nll" and (term.alpha, term.bias, term.gamma) == (0.1, 0.5, 1.0)

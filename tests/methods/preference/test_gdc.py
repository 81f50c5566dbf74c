"""Distributional policy gradients by enumeration: the posterior, its weights, and no gradient once it is reached."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Status
from shuhari.kernel.pack import STATUS
from shuhari.methods.preference.gdc.posterior import Posterior
from shuhari.needs import Need
from shuhari.testing import context

START, BETA = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 0.1
REWARD = BETA * torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64).log()  # so that exp(r / beta) is 1, 2 and 4
POSTERIOR = torch.tensor([5, 6, 8], dtype=torch.float64) / 19  # (.5, .6, .8), normalised


def weigh(q: Tensor, drawn: Tensor, reward: Tensor | None = None, groups: Tensor | None = None) -> Tensor:
    """Advantages [B] of answers that were drawn from q."""
    n = len(drawn)
    columns: dict[Any, Any] = {
        "mask": torch.ones(n, 1, dtype=torch.bool),
        "logp": q.log()[drawn][:, None],
        "reward": (REWARD if reward is None else reward)[drawn][:, None],
        "group": torch.zeros(n, dtype=torch.long) if groups is None else groups,
        "status": torch.full((n,), STATUS[Status.FINISHED]),
        Need(("reference",), "log_prob").key: START.log()[drawn][:, None],
    }
    batch = Batch(columns)
    batch.stream = "rl"
    return Posterior(beta=BETA)(batch, context())["advantage"][:, 0]


def draw_exactly(q: Tensor, n: int) -> Tensor:
    """Answers as often as q has them, of n."""
    return torch.repeat_interleave(torch.arange(len(q)), (q * n).round().long())


@pytest.mark.parametrize("q", [(0.5, 0.3, 0.2), (0.2, 0.2, 0.6), (0.1, 0.8, 0.1)])
def test_the_advantage_is_how_much_more_probable_an_answer_is_under_the_posterior(q: tuple[float, ...]) -> None:
    sampler = torch.tensor(q, dtype=torch.float64)
    drawn = draw_exactly(sampler, 10)
    torch.testing.assert_close(weigh(sampler, drawn).double(), (POSTERIOR / sampler)[drawn] - 1, atol=1e-6, rtol=0)


@pytest.mark.parametrize("q", [(0.5, 0.3, 0.2), (0.2, 0.2, 0.6)])
def test_there_is_no_gradient_at_the_posterior_whoever_draws(q: tuple[float, ...]) -> None:
    """Sum over y of q(y) (p*(y) / q(y) - 1) grad log pi(y), and with pi = q only: the 1 weighs nothing."""
    sampler = torch.tensor(q, dtype=torch.float64)
    drawn = draw_exactly(sampler, 10)
    theta = POSTERIOR.log().requires_grad_()
    chosen = theta.log_softmax(0)[drawn]
    weights = weigh(sampler, drawn).double() + 1
    (gradient,) = torch.autograd.grad((weights * chosen).mean(), theta)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-6, rtol=0)


def test_each_prompt_has_a_constant_of_its_own() -> None:
    """A reward that is larger by a constant for all answers to a prompt changes nothing."""
    drawn = draw_exactly(START, 10)
    two = torch.cat([drawn, drawn])
    groups = torch.repeat_interleave(torch.arange(2), 10)
    found = weigh(START, two, groups=groups)
    torch.testing.assert_close(found[:10], found[10:])
    torch.testing.assert_close(weigh(START, drawn, REWARD + 7.0), found[:10])
    assert float(found[:10].mean()) == pytest.approx(0, abs=1e-6)


def test_an_ungraded_answer_counts_nowhere() -> None:
    reward = REWARD.clone()
    reward[2] = torch.nan
    drawn = torch.tensor([0, 1, 2])
    found = weigh(START, drawn, reward)
    assert float(found[2]) == 0
    torch.testing.assert_close(found[:2], weigh(START, drawn[:2]))


def test_answers_of_unknown_probability_are_refused() -> None:
    with pytest.raises(ValueError, match="log-probability of an answer as it was drawn is unknown"):
        weigh(torch.tensor([torch.nan, 0.5, 0.5], dtype=torch.float64), torch.tensor([0, 1]))

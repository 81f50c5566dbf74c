"""Gaussians against torch.distributions and integrals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy import integrate, stats
from torch import distributions

from shuhari.batch import Batch
from shuhari.data import Sampling
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.models.gaussian import Gaussian, GaussianPolicy, Squashed, SquashedPolicy

BOUNDS = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))
SEEN = spaces.Box(-np.inf, np.inf, (3,))


def made(policy: Any, does: Any = BOUNDS) -> Any:
    torch.manual_seed(0)
    policy.build(SimpleNamespace(spaces=lambda: (SEEN, does)))
    return policy


def noise(n: int) -> CounterNoise:
    return CounterNoise(keys(1, n=n))


def parameters(seed: int, n: int = 6, a: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 1, a, generator=g), 0.5 * torch.randn(n, 1, a, generator=g)


def test_a_gaussian_is_that_of_torch() -> None:
    (m, s), (m2, s2) = parameters(0), parameters(1)
    action = parameters(2)[0]
    d, other = Gaussian(m, s, action), Gaussian(m2, s2, action)
    ref = distributions.Independent(distributions.Normal(m, s.exp()), 1)
    ref2 = distributions.Independent(distributions.Normal(m2, s2.exp()), 1)
    torch.testing.assert_close(d.log_prob(), ref.log_prob(action))
    torch.testing.assert_close(d.entropy(), ref.entropy())
    torch.testing.assert_close(d.kl(other), distributions.kl_divergence(ref, ref2))
    assert torch.equal(d.mode(), m[:, 0])
    assert torch.equal(d.parameters(), torch.cat([m, s], -1))


def test_a_squashed_gaussian_is_a_transformed_normal() -> None:
    (m, s), (m2, s2) = parameters(0), parameters(1)
    u = parameters(2)[0]
    ref, ref2 = (
        distributions.TransformedDistribution(
            distributions.Independent(distributions.Normal(*x), 1), distributions.TanhTransform(cache_size=1)
        )
        for x in ((m, s.exp()), (m2, s2.exp()))
    )
    action = u.tanh()
    want = ref.log_prob(action)
    torch.testing.assert_close(Squashed(m, s, action).log_prob(), want, atol=2e-4, rtol=0)  # u had back from a
    torch.testing.assert_close(Squashed(m, s, action, u).log_prob(), want, atol=2e-4, rtol=0)
    kl = Squashed(m, s, action).kl(Squashed(m2, s2, action))
    torch.testing.assert_close(kl, distributions.kl_divergence(ref.base_dist, ref2.base_dist))


def test_a_saturated_action_is_scored_by_what_was_drawn() -> None:
    """In float32 tanh(12) is 1: only `pre` tells 12 from 20. The slope there is 4 exp(-2u)."""
    mean, log_std = torch.zeros(3, 1, 1), torch.full((3, 1, 1), 2.0)
    u = torch.tensor([12.0, 20.0, float("nan")]).view(3, 1, 1)
    action = torch.ones(3, 1, 1)
    found = Squashed(mean, log_std, action, u).log_prob().squeeze(1)
    for i, x in enumerate((12.0, 20.0)):
        want = stats.norm.logpdf(x, 0, np.exp(2.0)) - (np.log(4.0) - 2 * x)
        assert found[i].item() == pytest.approx(want, abs=1e-4)
    assert bool(found.isfinite().all())  # a row that does not say is scored from its action


@pytest.mark.parametrize("e", [0.0, 0.3, 1.0])
def test_the_density_of_a_squashed_action_integrates_to_one(e: float) -> None:
    def density(a: float) -> float:
        x = torch.tensor([[[a]]], dtype=torch.float64)
        d = Squashed(torch.full_like(x, 0.4), torch.full_like(x, -0.3), x, None, torch.full((1, 1), e, dtype=x.dtype))
        return float(d.log_prob().exp())

    assert integrate.quad(density, -1, 1)[0] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("cls", [Gaussian, Squashed])
def test_rsample_agrees_with_scoring_and_differentiates(cls: Any) -> None:
    m, s = (x.requires_grad_() for x in parameters(0))
    action, logp = cls(m, s, torch.zeros_like(m)).rsample(noise(6))
    assert action.shape == (6, 2) and logp.shape == (6, 1)
    torch.testing.assert_close(cls(m, s, action[:, None]).log_prob(), logp, atol=1e-4, rtol=0)
    (grad,) = torch.autograd.grad(action.sum(), [m], retain_graph=True)
    slope = torch.ones_like(m) if cls is Gaussian else 1 - action.square()[:, None]
    torch.testing.assert_close(grad, slope)  # d tanh(u) / d mean
    (grad,) = torch.autograd.grad(logp.sum(), [s])
    eps = noise(6).normal(0, 2)[:, None]
    want = -torch.ones_like(s)  # -d log_std; and through u for the squashed: + 2 tanh(u) eps std
    if cls is Squashed:
        want = want + 2 * action[:, None] * eps * s.exp()
    torch.testing.assert_close(grad, want.detach(), atol=1e-5, rtol=1e-4)


def test_the_environment_gets_actions_in_its_bounds() -> None:
    contexts = 3 * torch.randn(500, 3)
    low, high = torch.from_numpy(BOUNDS.low), torch.from_numpy(BOUNDS.high)
    plain = made(GaussianPolicy(log_std=2.0)).sample(contexts, Sampling(), noise=noise(500))
    assert torch.equal(plain.taken, plain.action.clamp(low, high))
    assert bool((plain.action != plain.taken).any())
    squashed = made(SquashedPolicy()).sample(contexts, Sampling(), noise=noise(500))
    torch.testing.assert_close(squashed.taken, low + (squashed.action + 1) / 2 * (high - low))
    assert all(BOUNDS.contains(a.numpy()) for a in squashed.taken)
    assert torch.equal(squashed.info["pre"][:, 0].tanh(), squashed.action)
    free = made(GaussianPolicy(), spaces.Box(-np.inf, np.inf, (2,))).sample(contexts, Sampling(), noise=noise(500))
    assert not free.info


def test_greedy_is_the_mode() -> None:
    contexts = torch.randn(4, 3)
    columns = {"mask": torch.ones(4, 1, dtype=torch.bool), "context": contexts}
    for policy in (made(GaussianPolicy()), made(SquashedPolicy())):
        action = policy.sample(contexts, Sampling(greedy=True), noise=noise(4)).action
        torch.testing.assert_close(action, policy(Batch({**columns, "action": action})).mode())


def test_epsilon_one_is_uniform_over_the_bounds() -> None:
    n = 20_000
    traces = made(SquashedPolicy()).sample(torch.randn(n, 3), Sampling(epsilon=1.0), noise=noise(n))
    torch.testing.assert_close(traces.logp, torch.full((n, 1), -2 * np.log(2.0)), check_dtype=False)
    for j in range(2):
        assert stats.kstest(traces.action[:, j].numpy(), stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(traces.action.T.numpy())[0, 1]) < 4 / n**0.5


def test_the_spread_of_samples_is_the_parameter() -> None:
    n = 20_000
    policy = made(GaussianPolicy(log_std=-1.0))
    traces = policy.sample(torch.zeros(n, 3), Sampling(), noise=noise(n))
    assert next(iter(policy.module.state_dict())) == "log_std" and policy.module.log_std.tolist() == [-1.0, -1.0]
    for j in range(2):
        assert stats.kstest(traces.action[:, j].numpy(), stats.norm(0, np.exp(-1.0)).cdf).pvalue > 1e-3


def test_log_std_of_the_squashed_is_held_in_its_range() -> None:
    policy = made(SquashedPolicy(low=-1.0, high=0.5))
    with torch.no_grad():
        for p in policy.module.parameters():
            p.mul_(50)
    contexts = torch.randn(200, 3)
    batch = Batch({"mask": torch.ones(200, 1, dtype=torch.bool), "context": contexts, "action": torch.zeros(200, 2)})
    log_std = policy(batch).parameters()[..., 2:].detach()
    assert float(log_std.min()) == -1.0 and float(log_std.max()) == 0.5

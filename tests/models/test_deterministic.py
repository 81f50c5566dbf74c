"""The deterministic policy: a censored normal against scipy and integrals, and what environments and critics see."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy import integrate, stats

from shuhari.batch import Batch
from shuhari.data import Sampling
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.models.deterministic import Clipped, DeterministicPolicy

BOUNDS = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))
SEEN = spaces.Box(-np.inf, np.inf, (3,))


def made(policy: Any, does: Any = BOUNDS) -> Any:
    torch.manual_seed(0)
    policy.build(SimpleNamespace(spaces=lambda: (SEEN, does)))
    return policy


def noise(n: int) -> CounterNoise:
    return CounterNoise(keys(1, n=n))


def rows(contexts: torch.Tensor, action: torch.Tensor) -> Batch:
    return Batch({"mask": torch.ones(len(action), 1, dtype=torch.bool), "context": contexts, "action": action})


def law(action: list[float], mean: list[float], std: float, e: float | None = None) -> Clipped:
    """One decision."""
    m, a = (torch.tensor(x, dtype=torch.float64)[None, None] for x in (mean, action))
    share = None if e is None else torch.full((1, 1), e, dtype=torch.float64)
    return Clipped(m, torch.full_like(m, math.log(std)), a, share)


def test_inside_it_is_a_normal_and_a_bound_holds_the_mass_beyond() -> None:
    found = law([0.2, 1.0, -1.0], [0.5, 0.9, 0.4], 0.3).log_prob()
    want = stats.norm.logpdf(0.2, 0.5, 0.3) + stats.norm.logsf(1, 0.9, 0.3) + stats.norm.logcdf(-1, 0.4, 0.3)
    assert found.item() == pytest.approx(want)


@pytest.mark.parametrize("e", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("mean", [0.1, 0.95])
def test_density_and_masses_sum_to_one(e: float | None, mean: float) -> None:
    density = lambda a: float(law([a], [mean], 0.25, e).log_prob().exp())  # noqa: E731
    masses = density(-1.0) + density(1.0)
    inside = integrate.quad(density, -1 + 1e-12, 1 - 1e-12, points=[mean])[0]
    assert inside + masses == pytest.approx(1, abs=1e-6)
    assert masses < 1e-3 if mean == 0.1 or e == 1.0 else masses > 0.2


def test_a_uniform_share_has_no_mass_where_any_dimension_is_at_a_bound() -> None:
    plain, mixed = law([1.0, 0.0], [0.8, 0.1], 0.4), law([1.0, 0.0], [0.8, 0.1], 0.4, 0.25)
    assert mixed.log_prob().item() == pytest.approx(math.log(0.75) + plain.log_prob().item())


def test_samples_follow_the_law() -> None:
    n = 20_000
    policy = made(DeterministicPolicy((8,), noise=0.7))
    contexts = torch.ones(n, 3)
    action = policy.sample(contexts, Sampling(), noise=noise(n)).action
    mean = policy(rows(contexts, action)).mode()[0].tolist()
    for j in range(2):
        a, law_ = action[:, j].numpy(), stats.norm(mean[j], 0.7)
        for bound, mass in ((-1.0, law_.cdf(-1)), (1.0, law_.sf(1))):
            assert stats.binomtest(int((a == bound).sum()), n, mass).pvalue > 1e-4
        inner = a[np.abs(a) < 1]
        assert (
            stats.kstest(inner, stats.truncnorm((-1 - mean[j]) / 0.7, (1 - mean[j]) / 0.7, mean[j], 0.7).cdf).pvalue
            > 1e-3
        )
    uniform = policy.sample(contexts, Sampling(epsilon=1.0), noise=noise(n)).action
    assert stats.kstest(uniform[:, 0].numpy(), stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(uniform.T.numpy())[0, 1]) < 4 / n**0.5


def test_greedy_is_the_mode_and_has_no_noise() -> None:
    contexts = torch.randn(4, 3)
    policy = made(DeterministicPolicy((8,), noise=0.5))
    greedy = policy.sample(contexts, Sampling(greedy=True, epsilon=1.0), noise=noise(4)).action
    torch.testing.assert_close(greedy, policy(rows(contexts, greedy)).mode())
    torch.testing.assert_close(greedy, policy.module(contexts).tanh())
    again = policy.sample(contexts, Sampling(), noise=noise(4)).action
    torch.testing.assert_close(again, (greedy + 0.5 * noise(4).normal(0, 2)).clamp(-1, 1))


def test_the_environment_gets_actions_scaled_to_its_bounds() -> None:
    contexts = 3 * torch.randn(500, 3)
    traces = made(DeterministicPolicy(noise=0.8)).sample(contexts, Sampling(), noise=noise(500))
    low, high = torch.from_numpy(BOUNDS.low), torch.from_numpy(BOUNDS.high)
    torch.testing.assert_close(traces.taken, low + (traces.action + 1) / 2 * (high - low))
    assert all(BOUNDS.contains(a.numpy()) for a in traces.taken)
    assert float(traces.action.abs().max()) == 1.0  # some are clipped: the check is not empty


def test_rsample_agrees_with_scoring_and_stops_at_a_bound() -> None:
    mean = torch.tensor([[[0.0, 0.99]]] * 50, requires_grad=True)
    log_std = torch.full((50, 1, 2), math.log(0.3))
    action, logp = Clipped(mean, log_std, torch.zeros(50, 1, 2)).rsample(noise(50))
    torch.testing.assert_close(Clipped(mean, log_std, action[:, None]).log_prob(), logp)
    (slope,) = torch.autograd.grad(action.sum(), [mean])
    assert torch.equal(slope[:, 0], (action.abs() < 1).float()) and 0 < slope.mean() < 1


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"noise is 0\.0: expected a number above 0 \(greedy sampling has none\)"):
        DeterministicPolicy(noise=0.0)
    with pytest.raises(TypeError, match="scales to bounds"):
        made(DeterministicPolicy(), spaces.Box(-np.inf, np.inf, (2,)))
    with pytest.raises(ValueError, match=r"sampling\.temperature"):
        made(DeterministicPolicy((8,))).sample(torch.ones(1, 3), Sampling(temperature=0.5), noise=noise(1))

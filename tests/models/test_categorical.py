"""Categorical decisions by enumeration; frequencies against probabilities."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy import stats

from shuhari.batch import Batch
from shuhari.data import Sampling
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.models.categorical import Categorical, CategoricalPolicy, sample_rows
from shuhari.models.spaces import Choices, box
from shuhari.models.tabular import Tabular

LOGITS = torch.tensor([[0.0, 1.0, -0.5]])


def probabilities(t: float = 1.0, e: float = 0.0) -> np.ndarray:
    p = np.exp(LOGITS[0].double().numpy() / t)
    return (1 - e) * p / p.sum() + e / 3


def dist(logits: torch.Tensor, action: int = 1, t: float | None = None, e: float | None = None) -> Categorical:
    settings = (None if x is None else torch.tensor([[x]]) for x in (t, e))
    return Categorical(logits[:, None], torch.tensor([[action]]), *settings)


@pytest.mark.parametrize(("t", "e"), [(1.0, 0.0), (0.5, 0.0), (1.0, 0.3), (2.0, 0.1), (1.0, 1.0)])
def test_by_enumeration(t: float, e: float) -> None:
    p = probabilities(t, e)
    d = dist(LOGITS, 2, t, e)
    assert d.log_prob().item() == pytest.approx(np.log(p[2]), abs=1e-6)
    assert d.entropy().item() == pytest.approx(stats.entropy(p), abs=1e-6)
    q = dist(torch.tensor([[0.3, 0.0, 1.0]]))
    other = torch.tensor([0.3, 0.0, 1.0]).softmax(0).double().numpy()
    assert d.kl(q).item() == pytest.approx(stats.entropy(p, other), abs=1e-6)
    assert d.mode().item() == 1
    assert torch.equal(d.parameters(), LOGITS[:, None])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.5), Sampling(epsilon=0.4)])
def test_frequencies_are_those_of_the_distribution_named(sampling: Sampling) -> None:
    n = 50_000
    traces = sample_rows(LOGITS.expand(n, 3), sampling, CounterNoise(keys(3, n=n)))
    p = probabilities(float(sampling.temperature), float(sampling.epsilon))
    counts = np.bincount(traces.action.numpy(), minlength=3)
    assert stats.chisquare(counts, n * p).pvalue > 1e-3
    np.testing.assert_allclose(traces.logp[:, 0].exp(), p[traces.action.numpy()], rtol=1e-5)


def test_greedy_takes_the_mode_at_the_probability_it_has() -> None:
    traces = sample_rows(LOGITS, Sampling(greedy=True, temperature=0.5), CounterNoise(keys(0, n=1)))
    assert traces.action.tolist() == [1]
    assert traces.logp.item() == pytest.approx(np.log(probabilities(0.5)[1]), abs=1e-6)


def test_gradients_flow_through_a_wholly_uniform_mixture() -> None:
    logits = LOGITS.clone().requires_grad_()
    dist(logits, e=1.0).log_prob().sum().backward()
    assert logits.grad is not None and float(logits.grad.abs().max()) == 0


def test_a_table_starts_uniform_and_learns_a_row_at_a_time() -> None:
    table = Tabular()
    table.build(SimpleNamespace(spaces=lambda: (spaces.Discrete(3, start=1), spaces.Discrete(2, start=4))))
    assert torch.equal(table.module.logits, torch.zeros(3, 2))
    traces = table.sample(torch.tensor([1, 3]), Sampling(), noise=CounterNoise(keys(0, n=2)))
    assert traces.logp.flatten().tolist() == pytest.approx([np.log(0.5)] * 2)
    assert torch.equal(traces.taken, traces.action + 4)
    batch = Batch(
        {
            "mask": torch.ones(2, 1, dtype=torch.bool),
            "context": torch.tensor([1, 3]),
            "action": torch.tensor([0, 1]),
        }
    )
    d = table(batch)
    (grad,) = torch.autograd.grad(d.log_prob().sum(), [table.module.logits])
    assert grad.tolist() == [[0.5, -0.5], [0.0, 0.0], [-0.5, 0.5]]  # the gradient of log softmax: 1{a} - p


def test_actions_are_counted_from_zero_and_the_environment_gets_its_own() -> None:
    policy = CategoricalPolicy(hidden=())
    policy.build(SimpleNamespace(spaces=lambda: (spaces.Box(-1, 1, (2,)), spaces.Discrete(2))))
    traces = policy.sample(torch.zeros(5, 2), Sampling(), noise=CounterNoise(keys(0, n=5)))
    assert traces.taken is None and set(traces.action.tolist()) <= {0, 1}
    assert traces.logp.shape == (5, 1)


def test_policies_start_close_to_uniform() -> None:
    torch.manual_seed(0)
    policy = CategoricalPolicy()
    policy.build(SimpleNamespace(spaces=lambda: (spaces.Box(-1, 1, (4,)), spaces.Discrete(3))))
    traces = policy.sample(torch.randn(100, 4), Sampling(), noise=CounterNoise(keys(0, n=100)))
    np.testing.assert_allclose(traces.logp.exp(), 1 / 3, atol=0.02)


def test_actions_of_another_kind_name_a_recipe_that_takes_them() -> None:
    with pytest.raises(TypeError, match=r"a Discrete.*; baselines/ppo_pendulum and baselines/sac_pendulum take"):
        Choices.of(spaces.Box(-1, 1, (2,)), "categorical")
    with pytest.raises(TypeError, match=r"needs a Box.*; baselines/ppo_cartpole takes such actions"):
        box(spaces.Discrete(2), "action", "gaussian")

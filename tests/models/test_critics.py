"""Critics against hand-worked numbers and enumeration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy import stats

from shuhari.batch import Batch
from shuhari.data import Sampling
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.models.critics import Actions, ContinuousQ, DiscreteQ, ScalarModel, ValueCritic
from shuhari.needs import Need, evaluate

SEEN, CHOICE, BOX = spaces.Box(-1, 1, (3,)), spaces.Discrete(4), spaces.Box(-1, 1, (2,))


def made(model: Any, seen: Any = SEEN, does: Any = CHOICE) -> Any:
    torch.manual_seed(0)
    model.build(SimpleNamespace(spaces=lambda: (seen, does)))
    return model


def batch(action: torch.Tensor, **columns: torch.Tensor) -> Batch:
    n = len(action)
    context = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    return Batch({"mask": torch.ones(n, 1, dtype=torch.bool), "context": context, "action": action, **columns})


def test_a_value_is_one_number_a_row() -> None:
    critic = made(ValueCritic())
    b = batch(torch.zeros(5, dtype=torch.long))
    value = critic(b).value()
    assert value.shape == (5, 1)
    a, h, o = critic.module.body.layers
    x = b["context"]
    want = torch.tanh(torch.tanh(x @ a.weight.T + a.bias) @ h.weight.T + h.bias) @ o.weight.T + o.bias
    torch.testing.assert_close(value, want)
    assert torch.equal(critic(b).at(torch.tensor([3, 1])).value(), value[[3, 1], 0])


def test_a_value_of_states_is_a_table_without_hidden_layers() -> None:
    critic = made(ValueCritic(hidden=()), spaces.Discrete(4))
    (layer,) = critic.module.body.layers
    b = Batch({"mask": torch.ones(4, 1, dtype=torch.bool), "context": torch.tensor([2, 0, 3, 2])})
    torch.testing.assert_close(critic(b).value()[:, 0], layer.weight[0, [2, 0, 3, 2]] + layer.bias)


def test_q_of_all_actions_and_of_the_one_taken() -> None:
    q = made(DiscreteQ())
    d = q(batch(torch.tensor([3, 0, 2])))
    assert d.all().shape == (3, 1, 4)
    assert torch.equal(d.value(), torch.stack([d.all()[0, 0, 3], d.all()[1, 0, 0], d.all()[2, 0, 2]])[:, None])
    assert torch.equal(d.mode(), d.all().argmax(-1))
    assert d.mode().shape == (3, 1)


Q = torch.tensor([[[1.0, 3.0, 2.0, 0.0]]])


@pytest.mark.parametrize("e", [0.0, 0.4, 1.0])
def test_epsilon_greedy_by_hand(e: float) -> None:
    p = np.full(4, e / 4)
    p[1] += 1 - e
    share = torch.tensor([[e]])
    for action in range(4):
        logp = Actions(Q, torch.tensor([[action]]), share).log_prob().item()
        assert np.exp(logp) == pytest.approx(p[action], abs=1e-7)
    d = Actions(Q, torch.tensor([[0]]), share)
    assert d.entropy().item() == pytest.approx(stats.entropy(p), abs=1e-6)
    other = Actions(Q.flip(-1), torch.tensor([[0]]), torch.tensor([[0.2]]))
    q = np.array([0.05, 0.05, 0.85, 0.05])
    assert d.kl(other).item() == pytest.approx(stats.entropy(p, q), abs=1e-6)


def test_what_a_greedy_policy_never_does_has_probability_zero() -> None:
    d = Actions(Q, torch.tensor([[0]]))
    assert d.log_prob().item() == -np.inf and d.entropy().item() == 0
    assert d.kl(Actions(Q, torch.tensor([[0]]))).item() == 0
    assert d.kl(Actions(Q.flip(-1), torch.tensor([[0]]))).item() == np.inf


def test_epsilon_greedy_samples_as_often_as_it_says() -> None:
    n = 20_000
    q = made(DiscreteQ(), does=spaces.Discrete(4, start=1))
    contexts = torch.zeros(n, 3)
    traces = q.sample(contexts, Sampling(epsilon=0.4), noise=CounterNoise(keys(0, n=n)))
    best = int(q.sample(contexts[:1], Sampling(), noise=CounterNoise(keys(0, n=1))).action)
    p = np.full(4, 0.1)
    p[best] = 0.7
    assert stats.chisquare(np.bincount(traces.action, minlength=4), n * p).pvalue > 1e-3
    np.testing.assert_allclose(traces.logp[:, 0].exp(), p[traces.action], rtol=1e-6)
    assert traces.info["epsilon"].shape == (n, 1)
    assert torch.equal(traces.taken, traces.action + 1)


def test_an_ensemble_values_context_and_action_together() -> None:
    critic = made(ContinuousQ(n=3, hidden=(8,)), does=BOX)
    b = batch(torch.randn(5, 2))
    value = critic(b).value()
    assert value.shape == (5, 1, 3)
    x = torch.cat([b["context"], b["action"]], 1)
    (w1, w2), (b1, b2) = critic.module.body.weights, critic.module.body.biases
    for i in range(3):
        torch.testing.assert_close(value[:, 0, i], (torch.relu(x @ w1[i] + b1[i]) @ w2[i] + b2[i]).squeeze(1))
    assert torch.equal(critic(b).at(torch.tensor([4, 0])).value(), value[[4, 0], 0])
    action = b["action"].requires_grad_()
    (grad,) = torch.autograd.grad(critic(b.put({"action": action})).value().min(-1).values.sum(), [action])
    assert bool((grad.abs() > 0).all())
    with pytest.raises(ValueError, match="n is 0"):
        made(ContinuousQ(n=0), does=BOX)


def test_a_scalar_stays_positive_and_broadcasts() -> None:
    model = made(ScalarModel(initial=0.2))
    b = batch(torch.zeros(2, dtype=torch.long))
    value = model(b).value()
    assert value.dim() == 0 and value.item() == pytest.approx(0.2)
    (grad,) = torch.autograd.grad((3 * model(b).value()), list(model.module.parameters()))
    assert grad.item() == pytest.approx(0.6)  # d 3 exp(x) / dx
    assert model(b).parameters().item() == pytest.approx(np.log(0.2))
    with pytest.raises(ValueError, match="initial is 0"):
        made(ScalarModel(initial=0.0))


@pytest.mark.parametrize(
    "model", [made(ValueCritic()), made(DiscreteQ()), made(ContinuousQ(), does=BOX)], ids=lambda m: type(m).__name__
)
def test_values_are_a_need_with_a_gradient_only_where_trained(model: Any) -> None:
    b = batch(torch.zeros(4, 2) if isinstance(model, ContinuousQ) else torch.zeros(4, dtype=torch.long))
    need = Need(("critic",), "value", live=True)
    for trains in ((), ("critic",)):
        assert evaluate(b, [need], {"critic": model}, trains)[need.key].requires_grad is bool(trains)
    with torch.no_grad():
        assert not made(ScalarModel())(b).value().requires_grad

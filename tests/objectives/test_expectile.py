"""IQL: V against scipy's expectiles and closed forms, targets and weights by hand, the best of what was recorded."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import expectile

from given_values import Numbers, asked, rows
from shuhari.objectives.expectile import Expectile, ValueTD


def slope(tau, q, v):
    """The derivative of the mean loss with respect to V, of one state whose actions are worth q."""
    value = Numbers([v])
    batch = rows([0] * len(q), list(range(len(q))))
    _, loss, _ = asked(Expectile(tau=tau), batch, {"value": value, "target": Numbers([list(q)], members=2)})
    return float(torch.autograd.grad(loss.mean(), value.table)[0])


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.7, 0.95])
def test_v_is_the_expectile_of_the_smaller_member(tau: float) -> None:
    q = np.random.default_rng(0).normal(size=30)
    assert slope(tau, q, float(expectile(q, tau))) == pytest.approx(0, abs=1e-9)
    assert slope(tau, q, float(expectile(q, tau)) + 0.01) > 1e-4
    assert slope(tau, [0.0, 1.0], tau) == pytest.approx(0, abs=1e-12)  # tau (1 - V) = (1 - tau) V
    fine = (np.arange(20_000) + 0.5) / 20_000  # of the uniform law: tau (1 - V)² = (1 - tau) V²
    assert slope(tau, fine, 1 / (1 + math.sqrt(1 / tau - 1))) == pytest.approx(0, abs=1e-6)


def test_loss_and_weights_by_hand() -> None:
    models = {"value": Numbers([1.0]), "target": Numbers([[3.0, 0.5, 30.0]], members=2)}
    batch, loss, info = asked(Expectile(tau=0.8, temperature=2.0, most=50.0), rows([0, 0, 0], [0, 1, 2]), models)
    assert loss.tolist() == pytest.approx([0.8 * 4, 0.2 * 0.25, 0.8 * 29**2])
    assert info["advantage"].tolist() == pytest.approx([2.0, -0.5, 29.0])
    assert batch.stamps["weight/awr"][:, 0].tolist() == pytest.approx([math.e, math.exp(-0.25), 50.0])
    loss.sum().backward()
    assert models["target"].table.grad is None


def test_q_bootstraps_from_v() -> None:
    critic = Numbers([[1.0, 2.0], [3.0, 4.0]], members=2)
    models = {"critic": critic, "value": Numbers([10.0, 20.0])}
    batch = rows([0, 1, 0], [1, 0, 0], after=[1, 1, 0], reward=[0.5, 1.0, 2.0], cont=[1.0, 0.0, 1.0])
    _, loss, info = asked(ValueTD(gamma=0.9), batch, models)
    y = [0.5 + 0.9 * 20, 1.0, 2.0 + 0.9 * 10]
    assert info["target"].tolist() == pytest.approx(y)
    q = [2.0, 3.0, 1.0]
    assert loss.tolist() == pytest.approx([((a - b) ** 2 + (a + 1 - b) ** 2) / 2 for a, b in zip(q, y, strict=True)])
    loss.sum().backward()
    assert models["value"].table.grad is None
    assert critic.table.grad[1].tolist() == pytest.approx([3 - 1 + 4 - 1, 0.0])


def test_errors_beyond_huber_count_by_size_and_values_beyond_ten_bounds_have_diverged() -> None:
    """Errors of 0.5 and 3 at a delta of 2: 0.5² / 2, and 2 (3 - 1)."""
    models = {"critic": Numbers([[1.5, 4.0]]), "value": Numbers([0.0])}
    _, loss, info = asked(ValueTD(huber=2.0, bound=0.2), rows([0, 0], [0, 1], reward=[1.0, 1.0]), models)
    assert loss.tolist() == pytest.approx([0.125, 4.0]) and info["diverged"].tolist() == [0.0, 1.0]


def test_with_tau_near_one_v_is_the_best_that_was_recorded() -> None:
    """Two states; leaving state 1 pays 5 and ends, and was recorded; what would pay 9 in state 0 never was."""
    batch = rows([0, 0, 1, 1], [0, 1, 0, 1], after=[0, 1, 0, 1], reward=[0.1, 0.0, 1.0, 5.0], cont=[1.0, 1.0, 1.0, 0.0])
    q, v, gamma = Numbers([[0.0, 0.0, 9.0], [0.0, 0.0, 9.0]]), Numbers([0.0, 0.0]), 0.7
    models = {"value": v, "target": q, "critic": q}
    for _ in range(4000):
        for objective, net in ((Expectile(tau=0.999), v), (ValueTD(gamma=gamma), q)):
            (g,) = torch.autograd.grad(asked(objective, batch, models)[1].sum(), net.table)
            with torch.no_grad():
                net.table -= 0.4 * g
    assert v.table.detach().tolist() == pytest.approx([gamma * 5, 5.0], rel=0.01)
    best = [0.1 + gamma**2 * 5, gamma * 5, 1 + gamma**2 * 5, 5]
    assert q.table[:, :2].detach().flatten().tolist() == pytest.approx(best, rel=0.01)


@pytest.mark.parametrize("wrong", [{"tau": 1.0}, {"tau": 0.0}, {"temperature": 0.0}, {"most": -1.0}])
def test_settings_out_of_bounds_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Expectile(**wrong)

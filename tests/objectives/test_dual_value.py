"""f-DVL: where each loss has its minimum, by hand and by counting; XQL's limit, and the division by its largest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from given_values import Numbers, asked, rows
from shuhari.objectives.dual_value import DualValue


def slope(v: float, q: Any, **settings: Any) -> float:
    """The derivative of the mean loss with respect to V, where decisions are worth q alike often."""
    value = torch.tensor(v, dtype=torch.float64, requires_grad=True)
    loss = DualValue(**settings).loss(torch.as_tensor(q, dtype=torch.float64) - value)
    return float(torch.autograd.grad(loss.mean(), value)[0])


def lowest(q: Any, **settings: Any) -> float:
    """Where the mean loss is least, by bisection of its slope."""
    low, high = float(np.min(q)) - 50, float(np.max(q)) + 50
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle, q, **settings) <= 0 else (low, middle)
    return high


@pytest.mark.parametrize("tau", [0.6, 2 / 3, 0.9])
def test_total_variation_finds_a_quantile(tau: float) -> None:
    """A share (1 - tau) / tau lies above V; at 2/3 it is the median."""
    q = np.random.default_rng(0).normal(size=3001)
    assert (q > lowest(q, form="total_variation", tau=tau)).mean() == pytest.approx((1 - tau) / tau, abs=1e-3)


def test_chi_square_by_hand() -> None:
    """Values 0 and 1 alike often at tau = 0.6: 0.6 (1 + (1 - V) / 2) / 2 = 0.4, so V = 1/3."""
    assert lowest([0.0, 1.0], form="chi_square", tau=0.6) == pytest.approx(1 / 3)
    assert slope(20.0, [0.0, 1.0], form="chi_square", tau=0.6) == pytest.approx(0.4)  # no second parabola below -4


@pytest.mark.parametrize("form", ["chi_square", "total_variation", "reverse_kl"])
def test_a_single_value_is_the_value(form: Any) -> None:
    assert lowest([0.7, 0.7], form=form, tau=0.8) == pytest.approx(0.7, abs=1e-6)


def test_reverse_kl_is_the_log_mean_exp_and_a_square_near_zero() -> None:
    q = np.random.default_rng(1).normal(size=50)
    soft = 0.5 * math.log(np.exp(q / 0.5).mean())
    assert lowest(q, form="reverse_kl", tau=0.5) == pytest.approx(soft, abs=1e-6)
    d = torch.tensor([1e-3, 0.0], dtype=torch.float64)  # the largest z is not far from 0
    assert float(DualValue(form="reverse_kl", tau=2.0).loss(d)[0]) == pytest.approx(1e-6 / 8, rel=1e-2)


def test_the_authors_division_and_limit() -> None:
    """z = 2, 1, and 9 held at 7: (e^z - z - 1) / e^7; where all lie far below, by 1/e at most."""
    loss = DualValue(form="reverse_kl", tau=0.5).loss(torch.tensor([1.0, 0.5, 4.5], dtype=torch.float64))
    assert loss.tolist() == pytest.approx([(math.exp(z) - z - 1) / math.exp(7) for z in (2, 1, 7)])
    low = DualValue(form="reverse_kl", tau=1.0).loss(torch.tensor([-3.0], dtype=torch.float64))
    assert float(low) == pytest.approx((math.exp(-3) + 3 - 1) * math.e)


def test_loss_and_weights_in_a_batch() -> None:
    models = {"value": Numbers([1.0]), "target": Numbers([[3.0, 0.5]], members=2)}
    batch, loss, info = asked(DualValue(tau=0.6, temperature=2.0), rows([0, 0], [0, 1]), models)
    assert loss.tolist() == pytest.approx([0.6 * 3 - 0.4 * 2, 0.4 * 0.5]) and info["advantage"].tolist() == [2.0, -0.5]
    assert batch.stamps["weight/awr"][:, 0].tolist() == pytest.approx([math.e, math.exp(-0.25)])
    loss.sum().backward()
    assert models["target"].table.grad is None and models["value"].table.grad is not None


def test_settings_without_a_minimum_are_refused() -> None:
    for form, tau in (("chi_square", 0.5), ("total_variation", 1.0)):
        with pytest.raises(ValueError, match="between 1/2 and 1"):
            DualValue(form=form, tau=tau)  # type: ignore[arg-type]
    assert DualValue(form="reverse_kl", tau=5.0).couples == "batch" and DualValue().couples == "row"

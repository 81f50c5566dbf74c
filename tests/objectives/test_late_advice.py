"""Found-RL's two losses by the hand-worked numbers, and that rows without advice have none."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shuhari.batch import Batch
from shuhari.objectives.advice import AdviceGain, AdviceMargin
from shuhari.testing import check_objective, context


def rows(advised: list[bool], taken: list[float], advice: list[float]) -> Batch:
    """Actions of one entry; the critics below value an action at ten times it, and at ten times it and 5 more."""
    n = len(advised)
    return Batch({
        "context": torch.zeros(n, 1), "mask": torch.ones(n, 1, dtype=torch.bool), "pre": torch.zeros(n, 1, 1),
        "action": torch.tensor(taken)[:, None], "advice": torch.tensor(advice)[:, None, None],
        "advised": torch.tensor(advised),
    })  # fmt: skip


def critic(slope: torch.Tensor) -> Any:
    def dist(batch: Batch) -> Any:
        q = slope * batch["action"]  # [B, 1]
        return SimpleNamespace(value=lambda: torch.stack([q, q + 5], -1))

    dist.module = torch.nn.Module()
    return dist


def policy(mode: torch.Tensor) -> Any:
    """log pi(a) = -a, but NaN where the action's own `pre` is taken for that of the advice."""

    def dist(batch: Batch) -> Any:
        logp = torch.where(batch["pre"].isnan().all(-1), -batch["action"] + 0 * mode, torch.nan)
        return SimpleNamespace(mode=lambda: mode, log_prob=lambda: logp)

    dist.module = torch.nn.Module()
    return dist


def test_the_margin_by_hand() -> None:
    """Q = 1 and Q_v = 1: 4 a member; Q_v = 3: 0; without advice 0. The gradient goes by the advised action alone: it is
    2 · (1 - 1 - 2) · 0.1 a member in the first row, and 0 in the others."""
    slope = torch.tensor(10.0, requires_grad=True)
    batch = rows([True, True, False], [0.1, 0.1, 0.1], [0.1, 0.3, -0.9])
    loss, info = check_objective(AdviceMargin(), batch, context(models={"critic": critic(slope)}))
    assert loss.tolist() == pytest.approx([8.0, 0.0, 0.0], abs=1e-5)
    assert info["gap"].tolist() == pytest.approx([0.0, 2.0, 0.0], abs=1e-6)
    loss.sum().backward()
    assert slope.grad is not None and slope.grad.item() == pytest.approx(2 * 2 * -2 * 0.1, abs=1e-5)


def test_the_gain_by_hand() -> None:
    """The policy's own action is worth 0. Gains 2, 0, 8 and, without advice, 2: weights e, none, 20 and none; the mean
    of two rows is twice a quarter of them."""
    batch = rows([True, True, True, False], [0.0] * 4, [0.2, 0.0, 0.8, 0.2])
    mode = torch.zeros(4, 1, requires_grad=True)
    models = {"critic": critic(torch.tensor(10.0)), "policy": policy(mode)}
    loss, info = check_objective(AdviceGain(), batch, context(models=models))
    assert info["kept"].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert loss.mean().item() == pytest.approx((math.e * 0.2 + min(math.e**4, 20.0) * 0.8) / 2, rel=1e-5)
    assert loss[[1, 3]].tolist() == [0.0, 0.0]
    more = {**models, "critic": critic(torch.tensor(12.5))}  # a gain of 10
    assert AdviceGain()(batch, context(models=more))[0][2].item() == pytest.approx(20 * 0.8 * 2)


def test_nothing_to_learn_from() -> None:
    batch = rows([False, True], [0.0, 0.0], [0.5, -0.5])
    models = {"critic": critic(torch.tensor(10.0)), "policy": policy(torch.zeros(2, 1, requires_grad=True))}
    loss, _ = AdviceGain()(batch, context(models=models))
    assert loss.tolist() == [0.0, 0.0]

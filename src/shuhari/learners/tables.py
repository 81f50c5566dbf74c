"""Shared by learners without gradients: the logits of a `tabular` policy, into which they write their plans, and reward
and regret columns. Axes: `B` rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Info
from shuhari.needs import role_model
from shuhari.ports import Model

SURE = 50.0  # the logit of the planned action; all others are 0


def find_table(models: Mapping[str, Model], role: str, learner: str) -> Tensor:
    """Returns the logits [S, A] of the `tabular` model of `role`, one row per state. Raises TypeError for another
    model."""
    model = role_model(models, role)
    weights: dict[str, Tensor] = dict(model.module.named_parameters())
    if weights.keys() != {"logits"}:
        raise TypeError(f"{learner}: the model of {role!r} is {type(model).__name__}: expected a tabular one")
    return weights["logits"]


def sum_rewards(rows: Batch, learner: str) -> Tensor:
    """Returns the rewards [B] in double precision. Raises ValueError for one outside [0, 1], or NaN."""
    reward = rows["reward"].sum(1).double()
    low, high = map(float, reward.aminmax()) if len(reward) else (0.0, 0.0)
    if not 0 <= low <= high <= 1:  # also true for NaN
        raise ValueError(f"{learner}: rewards from {low:g} to {high:g}: expected [0, 1]")
    return reward


def report_regret(rows: Batch, state: dict[str, Any], learner: str) -> Info:
    """Returns `<learner>/regret`, the mean of the column `regret`, and `<learner>/regret_sum`, its sum so far, kept in
    `state`; nothing if there is no such column."""
    if "regret" not in rows or not len(rows):
        return {}
    regret = rows["regret"].double()
    state["regret"] += float(regret.sum())
    return {f"{learner}/regret": float(regret.mean()), f"{learner}/regret_sum": state["regret"]}

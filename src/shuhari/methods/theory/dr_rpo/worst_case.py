"""The exact value of a policy in a table if transitions shift to its disadvantage, without episodes.

Source: Gu, He, Liu and Xu, "Policy Regularized Distributionally Robust Markov Decision Processes with Linear Function
Approximation" (2025), robust Bellman equation, with one feature for each place and action. Axes: `T` steps, `P` places,
`A` actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shuhari.bounds import ShareBelow1, check
from shuhari.kernel.registry import register
from shuhari.learners.regularised import expect_worst
from shuhari.needs import role_model
from shuhari.ports import Ctx, ability


@register("metric", "worst_case")
@dataclass
class WorstCase:
    """The exact value of a tabular policy in a world with a `table`, as it samples: `nominal`, for the table's
    transitions, and `worst`, the least for any within total variation `radius` of them, chosen anew for each step,
    place and action. Raises TypeError for a task without a table."""

    role: str = "policy"
    """Role of the tabular policy that is evaluated."""
    radius: ShareBelow1 = 0.2
    """Total variation distance of the shifted transitions, in [0, 1)."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __call__(self, ctx: Ctx) -> Mapping[str, float]:
        table = ability(ctx.task, "table")
        if table is None:
            raise TypeError(f"metric worst_case: the task {type(ctx.task).__name__} tells no table of its transitions")
        policy: Any = role_model(ctx.models, self.role)
        T, (P, A) = table.horizon, table.r.shape
        with torch.no_grad():
            act = policy.decide(torch.arange(T * P))["logits"].double().softmax(1).view(T, P, A)
        p, r = torch.from_numpy(table.p), torch.from_numpy(table.r)
        found = {"nominal": evaluate_worst(p, r, act, 0.0), "worst": evaluate_worst(p, r, act, self.radius)}
        return {name: float(value[table.first]) for name, value in found.items()}


def evaluate_worst(p: Tensor, r: Tensor, policy: Tensor, radius: float) -> Tensor:
    """Returns [P] the least value of a policy [T, P, A] at the first step, for transitions within `radius` of p [P, A,
    P] and rewards r [P, A]."""
    value = torch.zeros(len(r), dtype=r.dtype)
    for act in policy.flip(0):
        value = (act * (r + expect_worst(p, value, radius))).sum(1)
    return value

"""The exact value of a policy in a table, without episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from shuhari.bounds import check
from shuhari.kernel.registry import register
from shuhari.needs import role_model
from shuhari.ports import Ctx, ability
from shuhari.tasks.worlds.finite_horizon import evaluate_policy, iterate_from_random


@register("metric", "table")
@dataclass
class TableValue:
    """The exact value of the policy in an environment with known transitions, as a share of the optimal one; without
    episodes.

    For a task with a `table`: `share`, the value of the first place under the policy of `role`, as it samples, over the
    optimal one; `states`, the number of states. Raises TypeError for a task without a table.
    """

    role: str = "policy"
    """Role of the tabular policy that is evaluated."""

    def __post_init__(self) -> None:
        check(self)
        self._best: tuple[Any, float] | None = None  # for the current table

    def __call__(self, ctx: Ctx) -> Mapping[str, float]:
        table = ability(ctx.task, "table")
        if table is None:
            raise TypeError(f"metric table: the task {type(ctx.task).__name__} tells no table of its transitions")
        policy: Any = role_model(ctx.models, self.role)
        T, (P, A) = table.horizon, table.r.shape
        with torch.no_grad():
            act = policy.decide(torch.arange(T * P))["logits"].double().softmax(1).view(T, P, A).numpy()
        if self._best is None or self._best[0] is not table:
            self._best = table, float(iterate_from_random(table.p, table.r, T, T)[0, table.first].max())
        own = evaluate_policy(table.p, table.r, act)[0, table.first]
        return {"share": float(act[0, table.first] @ own / self._best[1]), "states": float((T + 1) * P)}

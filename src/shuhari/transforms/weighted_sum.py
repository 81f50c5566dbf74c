"""Adds columns up, each by its weight: advantages of several rewards, each normalised on its own before.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from shuhari.batch import Batch
from shuhari.bounds import check
from shuhari.data import EMPTY, Number
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("transform", "weighted_sum")
@dataclass
class WeightedSum:
    """Stamps column `into` [B, K]: the sum of columns [B, K] or [B], each times its weight, at decisions, 0 elsewhere.

    Of advantages that `advantage` has made of one reward each it makes the advantage of all of them (GDPO: Liu et al.
    2026, "Group reward-Decoupled Normalization Policy Optimization"). Raises ValueError if nothing is added up.
    """

    of: Mapping[str, Number] = EMPTY
    """Column -> its weight, a number or a schedule, such as `{right_advantage = 1.0, brief_advantage = 0.5}`."""
    into: str = "advantage"
    """Column that receives the sum."""
    needs: tuple[Need, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        check(self)
        if not self.of:
            raise ValueError("weighted_sum: of is empty: expected columns and their weights")

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(self.of)

    @property
    def stamps(self) -> tuple[str, ...]:
        return (self.into,)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        total = torch.zeros(batch["mask"].shape)
        for name, weight in self.of.items():
            x = batch[name]
            total = total + ctx.at(weight) * (x if x.dim() == 2 else x[:, None])
        return batch.put({self.into: torch.where(batch["mask"], total, 0.0)})

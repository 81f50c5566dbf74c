"""Adds noise to the trained rewards, to test how values are fitted to them.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from shuhari.batch import Batch
from shuhari.bounds import Coefficient, check
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("transform", "reward_noise")
@dataclass
class RewardNoise:
    """Adds uniform noise of mean 0, U(-width / 2, width / 2), to the column `reward` [B, K] of every decision.

    As the mean is 0, longer episodes do not pay. A transform of `[collect]`, where each decision passes once: a replay
    buffer then keeps the drawn noise. `reward/<name>`, reported returns and evaluation are without it.
    """

    width: Coefficient
    """Width of the uniform noise, in units of the trained reward; 0 adds none."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    reads = ("reward",)
    stamps = ("reward",)

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        drawn = ctx.noise(batch, "reward_noise").uniform(0, batch.width) - 0.5
        noisy = batch["reward"] + ctx.at(self.width) * drawn.to(batch["reward"].dtype)
        return batch.put({"reward": torch.where(batch["mask"], noisy, batch["reward"])})

"""A policy gradient by bounds: a loss that is a plain sum over draws of masks.

Source: Boundary-Guided Policy Optimization for Memory-efficient RL of Diffusion Large Language Models (BGPO: Lin et al.
2025, arXiv 2510.11683). Left out: a backward pass for each draw, which such a sum allows: a micro-batch has all draws
of its rows at once.

Axes: `B` rows, `K` positions, `n` draws.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.objectives.clip import LIMIT
from shuhari.ports import Ctx

LOOSE = 1e-3  # by so much, times |A|, the bound is above the loss that it bounds


@register("objective", "boundary")
@dataclass
class Boundary:
    """Policy gradient for masked language models whose loss is a plain sum over random masks, so that many masks can be
    used (BGPO).

    With d_j the change, since before the update, of the bound of an answer on mask draw j, over its length: -A (1 +
    mean d_j) if the advantage A is positive, else -A mean exp(d_j), the same at each decision [B, K].

    By Jensen's inequality it is above -A exp(mean d_j), the loss whose ratio is that of the bounds; before any change,
    value and gradient are the same. Each term has one draw, so the gradient is a sum over draws. Means weight draws by
    `mask_weight`. Info: `log_ratio`, mean d_j, and `loose`, the share of decisions at which the bound is above that
    loss by more than 0.001 |A|.
    """

    role: str = "policy"
    """Role of the policy that is trained."""
    advantage: str = "advantage"
    """Name of the column with the advantage."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.advantage, "mask_weight")

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return Need((self.role,), "draws", live=True), Need((self.role,), "draws")

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        new, old = (batch[need] for need in self.needs)
        mask, weight, a = batch["mask"], batch["mask_weight"], batch[self.advantage]
        moved = ((new - old) * mask[..., None]).sum(1)  # [B, n], each times its weight
        d = (moved / weight / mask.sum(1, keepdim=True).clamp(min=1)).clamp(-LIMIT, LIMIT)
        plain = (weight * (1 + d)).sum(1, keepdim=True)
        curved = (weight * d.exp()).sum(1, keepdim=True)
        mean = (weight * d.detach()).sum(1, keepdim=True).expand_as(a)
        bound = torch.where(a >= 0, plain, curved)
        loose = ((bound.detach() - mean.exp()).abs() > LOOSE) & (a != 0)
        return -a * bound, {"log_ratio": mean, "loose": loose.float()}

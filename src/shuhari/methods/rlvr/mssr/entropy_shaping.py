"""Larger advantages for tokens at which the policy was less certain.

Source: "Reasoning with Exploration: An Entropy Perspective" (Cheng et al. 2025, arXiv 2506.14758); MSSR (Liu et al.
2025, arXiv 2512.18215) uses it for single answers, which collapse without.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from shuhari.batch import Batch
from shuhari.bounds import Bounds, Coefficient, check
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("transform", "entropy_shaping")
@dataclass
class EntropyShaping:
    """Adds a bonus to the advantage of tokens at which the policy was uncertain, limited to a part of the advantage's
    size.

    Adds min(alpha H, |A| / kappa) to each decision's advantage A (column `column` [B, K]), with H the entropy, in nats,
    of its distribution as scored before the update, without gradient. No advantage changes its sign, and 0 stays 0.
    """

    alpha: Coefficient = 0.4
    """Bonus per nat of entropy, or a schedule; 0 turns it off."""
    kappa: Annotated[float, Bounds(1, open="low")] = 2.0
    """Limit of the bonus: at most the advantage's size over kappa, above 1, so that no advantage changes its sign."""
    role: str = "policy"
    """Role of the policy whose entropy is measured."""
    column: str = "advantage"
    """Name of the column with the advantage, which is replaced."""

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "entropy"),)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def stamps(self) -> tuple[str, ...]:
        return (self.column,)

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        advantage, entropy = batch[self.column], batch[self.needs[0]]
        bonus = torch.minimum(ctx.at(self.alpha) * entropy, advantage.abs() / self.kappa)
        return batch.put({self.column: advantage + torch.where(batch["mask"], bonus, 0.0)})

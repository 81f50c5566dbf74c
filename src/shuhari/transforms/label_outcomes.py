"""Outcomes of the policy's own answers as labels, from which a model of outcomes learns beside it.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch

from shuhari.batch import Batch
from shuhari.bounds import Bounds, check
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import ends
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("transform", "label_outcomes")
@dataclass
class LabelOutcomes:
    """Labels the last decision of each answer as right or wrong, for the objective `classification` of an outcome
    reward model.

    Stamps `label` [B, K]: 1 if the outcome is above `above`, else 0, on the last decision of a row that ends an answer;
    NaN elsewhere, and for answers that are ungraded or ended in an error.
    """

    reward: str = "reward"
    """Column whose outcome, its sum over the answer, is labelled."""
    above: Annotated[float, Bounds(infinite=True)] = 0.0
    """Outcome that a right answer exceeds."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    stamps = ("label",)

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.reward,)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        mask, outcome = batch["mask"], batch.outcome(self.reward)
        known = ends(batch) & find_usable(batch) & ~outcome.isnan()
        last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True)) & known[:, None]
        label = torch.where(last, (outcome > self.above).float()[:, None], torch.nan)
        return batch.put({"label": label})

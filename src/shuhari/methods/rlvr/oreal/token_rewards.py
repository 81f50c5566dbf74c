"""Classifies outcomes by the mean of a model's values: credit of decisions, learnt from outcomes alone.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from shuhari.batch import Batch
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("objective", "token_rewards")
@dataclass
class Outcome:
    """Trains a credit model for tokens from outcomes alone: the mean of its values over an answer classifies the
    outcome (OREAL).

    The binary cross-entropy of p = sigmoid(mean of w over a row's decisions) and its outcome, nats, [B], w being the
    value of `role` at each decision (Lyu et al. 2025, arXiv 2502.06781). Info: `accuracy` (the share of rows whose
    outcome is on the same side of 1/2 as p).
    """

    role: str = "credit"
    """Role of the credit model that is trained."""
    reward: str = "reward"
    """Reward column, in [0, 1], that is the outcome of an answer; `reward` is the weighted sum that is trained."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.reward,)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "value", live=True),)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        mask, outcome = batch["mask"], batch.outcome(self.reward)
        mean = (batch[self.needs[0]] * mask).sum(1) / mask.sum(1)
        right = (mean > 0) == (outcome > 0.5)
        return F.binary_cross_entropy_with_logits(mean, outcome, reduction="none"), {"accuracy": right.float()}

"""Classification of outcomes by the mean of a model's values: credit of decisions, learnt from outcomes alone.

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
    """The binary cross-entropy of p = sigmoid(mean of w over a row's decisions) and its outcome, nats, [B].

    w is the value of `role` at each decision, so that a model that is told outcomes alone learns what each decision
    adds to them (OREAL: Lyu et al. 2025, arXiv 2502.06781). reward: the column whose outcome is meant, in [0, 1]. Info:
    `accuracy` (the share of rows whose outcome is on p's side of a half).
    """

    role: str = "credit"
    reward: str = "reward"
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

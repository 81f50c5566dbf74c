"""Regression of a critic on returns, and of its mean on outcomes.

Axes: `B` rows, `K` positions, `n` members of an ensemble. Targets that bootstrap at each update are in `td`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from shuhari.batch import Batch
from shuhari.data import Info, Number
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.registry import register


@register("objective", "value")
@dataclass
class Value:
    """(V - R)² / 2, [B, K], R column `target` (`return`, as `gae` stamps it); the mean over an ensemble's members.

    clip > 0: the larger of that and the loss of V held within `clip` of its value before the update (PPO's value
    clipping; Schulman's implementation, Engstrom et al. 2020, equation 3); 0 is off. Info: `value`.
    """

    clip: Number = 0.0
    role: str = "critic"
    target: str = "return"
    couples: Literal["row", "batch"] = field(default="row", init=False)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        live = Need((self.role,), "value", live=True)
        return (live, Need((self.role,), "value")) if self.clip else (live,)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        value, target = batch[self.needs[0]], batch[self.target]
        if value.dim() == 3:
            target = target[..., None]
        error = (value - target).square()
        if self.clip:
            old, width = batch[self.needs[1]], ctx.at(self.clip)
            held = old + (value - old).clamp(-width, width)
            error = torch.maximum(error, (held - target).square())
        if value.dim() == 3:
            error, value = error.mean(2), value.mean(2)
        return error / 2, {"value": value.detach()}


@register("objective", "outcome")
@dataclass
class Outcome:
    """The binary cross-entropy of p = sigmoid(mean of w over a row's decisions) and its outcome, nats, [B].

    w is the value of `role` at each decision, so that a model that is told outcomes alone learns what each decision
    adds to them (OREAL: Lyu et al. 2025, arXiv 2502.06781). reward: the column whose outcome is meant, in [0, 1]. Info:
    `told` (the share of rows whose outcome is on p's side of a half).
    """

    role: str = "credit"
    reward: str = "reward"
    couples: Literal["row", "batch"] = field(default="row", init=False)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "value", live=True),)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        mask, outcome = batch["mask"], batch.outcome(self.reward)
        mean = (batch[self.needs[0]] * mask).sum(1) / mask.sum(1)
        right = (mean > 0) == (outcome > 0.5)
        return F.binary_cross_entropy_with_logits(mean, outcome, reduction="none"), {"told": right.float()}

"""Regression of a critic on returns.

Axes: `B` rows, `K` positions, `n` members of an ensemble. Targets that bootstrap at each update are in `td`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Coefficient, check
from shuhari.data import Info
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

    clip: Coefficient = 0.0
    role: str = "critic"
    target: str = "return"
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.target,)

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

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
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.objectives.td import fit, fitted
from shuhari.ports import Ctx


@register("objective", "value")
@dataclass
class Value:
    """The critic loss of PPO: (V - R)² / 2, [B, K], R the column `target`; the mean over an ensemble's members.

    With a `clip` it is the larger of that and the loss of V clipped to within `clip` of its value before the update
    (Schulman's implementation, Engstrom et al. 2020, equation 3). Info: `value`. Raises ValueError for a clip with a
    cross-entropy.
    """

    clip: Coefficient = 0.0
    """Range around the value before the update outside which the loss gives no gain (PPO's value clipping), in units of
    the return; 0 is off."""
    loss: Literal["squared", "cross_entropy"] = "squared"
    """Loss of the error: half its square (`squared`), or `cross_entropy` for a critic with `bins` (HL-Gauss)."""
    role: str = "critic"
    """Role of the critic that is trained, a name under `[models]`."""
    target: str = "return"
    """Column with the returns to regress on; the transform `gae` stamps `return`."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)
        if self.clip and self.loss == "cross_entropy":
            raise ValueError(f"value: clip is {self.clip}: expected 0 if the loss is a cross-entropy")

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.target,)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        live = fitted(self.role, self.loss)
        return (live, Need((self.role,), "value")) if self.clip else (live,)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        value, target = batch[self.needs[0]], batch[self.target]
        if self.loss == "cross_entropy":
            value, loss = fit(value, target, role_model(ctx.models, self.role))
            return loss, {"value": value}
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

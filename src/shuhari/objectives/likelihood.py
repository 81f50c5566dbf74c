"""Supervised losses: the negative log-likelihood of the rows' decisions.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("objective", "nll")
@dataclass
class Nll:
    """Supervised fine-tuning and behaviour cloning: -log pi(action), nats, [B, K]; with demonstrations on stream
    `ce`."""

    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
    score: str = "log_prob"
    """Method of the policy's distribution that is maximised: `log_prob`, or a bound of it such as `elbo` for masked
    diffusion."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), self.score, live=True),)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        return -batch[self.needs[0]], {}

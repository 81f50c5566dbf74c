"""Supervised losses: the negative log-likelihood of what stands in the rows.

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
    """-log pi(action), nats, [B, K]: for demonstrations, on stream `ce`. score: the method of the role's distribution
    that is raised (of a bound, its own name)."""

    role: str = "policy"
    score: str = "log_prob"
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), self.score, live=True),)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        return -batch[self.needs[0]], {}

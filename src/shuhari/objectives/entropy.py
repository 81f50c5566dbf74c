"""The entropy bonus.

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


@register("objective", "entropy")
@dataclass
class Entropy:
    """The entropy bonus: minus the entropy of each decision, nats, [B, K]; its coefficient is the weight of the term.
    Info: `entropy`."""

    role: str = "policy"
    """Role of the policy whose entropy is raised, a name under `[models]`."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "entropy", live=True),)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        entropy = batch[self.needs[0]]
        return -entropy, {"entropy": entropy.detach()}

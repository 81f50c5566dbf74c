"""The policy's log-probability of the demonstration of the same prompt, position by position.

Source: "Controllable Exploration in Hybrid-Policy RLVR for Multi-Modal Reasoning" (CalibRL), whose code aligns tokens
by position. Left out: any better alignment; groups of several demonstrations.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from shuhari.batch import Batch
from shuhari.bounds import check
from shuhari.kernel.reduce import units
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("transform", "expert_logp")
@dataclass
class Beside:
    """Puts the log-probability of the demonstration's n-th token at the n-th token of each answer of its group
    (CalibRL).

    Stamps column `into` [B, K], by the policy before the update; 0 beyond the demonstration's end, and in a group
    without one. The demonstration is the row whose column `demos` is not 0, as from the rollout `with_solution`. Rows
    are assumed to be single answers to one prompt.
    """

    into: str = "expert"
    """Name of the column that receives the log-probabilities."""
    demos: str = "demo"
    """Name of the column that is not 0 on demonstrations."""
    role: str = "policy"
    """Role of the policy that scores the demonstration."""

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "log_prob"),)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.demos,)

    @property
    def stamps(self) -> tuple[str, ...]:
        return (self.into,)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        said = torch.where(batch["mask"], batch[self.needs[0]], 0.0)
        group, shown = units(batch, "group"), batch[self.demos] > 0
        experts = said.new_zeros(int(group.max()) + 1 if len(group) else 0, said.shape[1])
        experts[group[shown]] = said[shown]
        return batch.put({self.into: experts[group]})

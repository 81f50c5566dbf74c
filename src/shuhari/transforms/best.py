"""Learns only from the best answers of a group: reward-ranked fine-tuning.

Source: "RAFT: Reward rAnked FineTuning for Generative Foundation Model Alignment", Algorithm 1 (ranking within a
prompt). Left out: ranking over a whole batch, which starves hard problems; a reward less a KL (`kl_in_reward`).

Axes: `B` rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import torch

from shuhari.batch import Batch
from shuhari.bounds import Bounds, Length, check
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import ends, units
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import zero_ungraded, zero_weight


@register("transform", "keep_best")
@dataclass
class Best:
    """Rejection sampling: only the best answers of each group are learnt from.

    Sets weight 0 on `stream` for all answers of a group except the `keep` with the largest outcomes (ties: the first
    ones), and for every one whose outcome is not above `above`. A kept answer of several turns keeps all its rows.
    """

    keep: Length = 1
    """Number of answers that are kept in each group."""
    above: Annotated[float, Bounds(infinite=True)] = -math.inf
    """Outcome that a kept answer must exceed, so that a group without a success teaches nothing; -inf keeps any."""
    reward: str = "reward"
    """Column whose outcome ranks the answers."""
    stream: str = "rl"
    """Stream on which the other answers get weight 0; loss terms of that `stream` then skip them."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    stamps = ()
    least_n = 2

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.reward, f"weight/{self.stream}"

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        outcome = batch.outcome(self.reward)
        batch = zero_ungraded(batch, outcome.isnan() & find_usable(batch), ctx, self.stream)
        good = ends(batch) & find_usable(batch) & (outcome > self.above)  # NaN is not above anything
        rows = good.nonzero()[:, 0]
        order = rows[outcome[rows].argsort(descending=True, stable=True)]
        group = units(batch, "group")[order]
        order, group = order[(by := group.argsort(stable=True))], group[by]
        first = torch.searchsorted(group, group)  # where the group of each begins
        kept = order[torch.arange(len(order)) - first < self.keep]
        return zero_weight(batch, ~torch.isin(batch["episode"], batch["episode"][kept]), self.stream)

"""Advantages from two halves of a group: answers with high and with low values of a metric.

Source: "Conditional Advantage Estimation for Reinforcement Learning in Large Reasoning Models" (CANON, Chen et al.
2025, arXiv 2509.23962), equations 5 and 8. Left out: halves by more than one metric; answers of several rows.

Axes: `B` rows, `K` positions, `H` halves, two per group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Bounds, Fraction, check
from shuhari.data import Number
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import ends, mean_by, units
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import zero_ungraded


@register("transform", "split_groups")
@dataclass
class Halves:
    """Advantages that compare an answer with the other half of its group as well as with its own, split by entropy or
    length (CANON).

    Stamps column `into` [B, K]: for outcome r, mu (r - mean of the other half) + (1 - mu) (r - mean of its own half),
    on every decision of the row. The low half of n graded answers is the first floor(n / 2) by the metric, ties in the
    order of sampling. With alpha below 1, the first bracket is r - alpha (mean of the other half) for answers of the
    preferred half, alpha r - (mean of the other half) for the others.

    A group with one graded answer has advantage 0. Rows whose outcome is NaN get advantage 0 and weight 0 on `stream`,
    and are charged as `ungraded`. Raises ValueError for an answer of several rows.
    """

    metric: Literal["entropy", "length", "order"] = "entropy"
    """Metric that splits a group: "entropy" (mean over an answer's tokens before the update, nats), "length" in tokens,
    or "order" of sampling, a control."""
    mu: Fraction = 0.5
    """Weight of the comparison with the other half, or a schedule; 1/2 in even groups is the outcome less the group's
    mean."""
    alpha: Annotated[Number, Bounds(0, 1, open="low")] = 1.0
    """Factor in (0, 1], or a schedule; below 1 one half of each group is preferred."""
    prefer: Literal["high", "low"] = "high"
    """Half that is preferred if `alpha` is below 1: "high" or "low" by the metric."""
    role: str = "policy"
    """Role of the policy whose entropy is measured."""
    reward: str = "reward"
    """Reward column that is the outcome of an answer; `reward` is the weighted sum that is trained."""
    into: str = "advantage"
    """Name of the column that receives the advantage."""
    stream: str = "rl"
    """Name of the weights `weight/<stream>`; ungraded rows get weight 0 on it."""
    least_n = 2

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "entropy"),) if self.metric == "entropy" else ()

    @property
    def reads(self) -> tuple[str, ...]:
        return self.reward, f"weight/{self.stream}"

    @property
    def stamps(self) -> tuple[str, ...]:
        return (self.into,)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        if bool((batch.decides & ~ends(batch)).any()):
            raise ValueError("halves: an answer has several rows: expected one, whose metric is that of the answer")
        r, usable = batch.outcome(self.reward), find_usable(batch)
        counts = batch.decides & usable & ~r.isnan()
        high, group = self._find_high(batch, counts), units(batch, "group")
        half = 2 * group + high
        n = 2 * (int(group.max()) + 1) if len(group) else 0
        mean = mean_by(torch.where(counts, r, torch.nan), half, n)[0]  # [H]
        own, other = mean[half], mean[half ^ 1]
        mu, alpha = ctx.at(self.mu), ctx.at(self.alpha)
        preferred = high == (self.prefer == "high")
        between = torch.where(preferred, r - alpha * other, alpha * r - other)
        a = (mu * between + (1 - mu) * (r - own)).masked_fill(~counts, 0.0)
        a = a.nan_to_num(0.0)  # a half without an answer has no mean
        batch = zero_ungraded(batch, r.isnan() & usable, ctx, self.stream)
        return batch.put({self.into: a[:, None] * batch["mask"]})

    def _find_high(self, batch: Batch, counts: Tensor) -> Tensor:
        """Returns [B] 1 for counted rows in the high half of their group, else 0."""
        rows = counts.nonzero()[:, 0]
        rows = rows[self._measure(batch)[rows].argsort(stable=True)]
        group = units(batch, "group")[rows]
        rows, group = rows[(by := group.argsort(stable=True))], group[by]
        first, last = (torch.searchsorted(group, group, right=right) for right in (False, True))
        high = torch.zeros(len(batch), dtype=torch.long)
        high[rows] = (torch.arange(len(rows)) - first >= (last - first) // 2).long()
        return high

    def _measure(self, batch: Batch) -> Tensor:
        """Returns [B] the metric of each row."""
        mask = batch["mask"]
        if self.metric == "order":
            return torch.zeros(len(batch))
        length = mask.sum(1)
        if self.metric == "length":
            return length
        return torch.where(mask, batch[self.needs[0]], 0.0).sum(1) / length.clamp(min=1)

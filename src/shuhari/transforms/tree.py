"""Credit for the nodes of a search tree, once for each shared step.

Left out: computing `q`; a rollout stamps it (`rollouts.tree`). Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import check
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import group_mean
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.returns import find_heads
from shuhari.transforms.streams import zero_ungraded


@register("transform", "node_advantage")
@dataclass
class NodeAdvantage:
    """Advantages of the nodes of a search tree, once for each shared step (DeepSearch, arXiv 2509.25454, section 3.4).

    Stamps column `into` [B, K] on every decision of the node, 0 elsewhere: q(node) less the mean value of the group's
    answers, or less q of its parent node (at its last decision), not divided. A node without a parent uses the mean of
    the group, which is the value of the problem. An answer's value is 2 r - 1 of its `reward` r in [0, 1]. If q is
    unknown (column `q` [B, K] missing or NaN: plain samples, nodes without backups), it is the mean value of the graded
    answers below. Rows without any get advantage 0 and weight 0 on `stream`, and are charged as `ungraded`.
    """

    reward: str = "reward"
    """Column whose outcome, in [0, 1], gives an answer's value in [-1, 1]."""
    stream: str = "rl"
    """Stream that loses weight on rows without a graded answer."""
    less: Literal["group", "parent"] = "group"
    """Baseline that is subtracted: the mean value of the `group` (DeepSearch), or the value of the `parent` node, so
    that a step is credited with its own change."""
    into: str = "advantage"
    """Column [B, K] that receives the advantages."""
    needs: tuple[Need, ...] = field(default=(), init=False)

    @property
    def stamps(self) -> tuple[str, ...]:
        return (self.into,)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.reward, f"weight/{self.stream}"

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        r = batch.outcome(self.reward)
        missing = r.isnan() & find_usable(batch)
        below = (2 * r - 1).masked_fill(~find_usable(batch), torch.nan)  # [B]
        mean, _ = group_mean(batch, below)
        q = batch.get("q")
        q = below[:, None] if q is None else torch.where(q.isnan(), below[:, None], q)
        batch = zero_ungraded(batch, missing, ctx, self.stream)
        less = mean[:, None] if self.less == "group" else _before(q, below, mean, batch)
        a = (q - less).masked_fill(below.isnan()[:, None], 0.0)
        return batch.put({self.into: a * batch["mask"]})


def _before(q: Tensor, below: Tensor, mean: Tensor, batch: Batch) -> Tensor:
    """Returns [B, K] q [B, 1 or K] at the last decision of the previous node: the previous segment of the row, else the
    previous row, for which `below` [B] is used if it decides nothing; `mean` [B] if there is none."""
    mask = batch["mask"]
    q, place = q.expand(mask.shape), torch.arange(mask.shape[1])
    latest = torch.where(mask, place, -1).cummax(1).values  # the last decision at or before each position
    ending = torch.where(latest[:, -1] < 0, below, q.gather(1, latest[:, -1:].clamp(min=0))[:, 0])
    up = batch.local(batch["parent"])
    outside = torch.where(up < 0, mean, ending[up.clamp(min=0)])
    earlier = torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], 1)
    earlier = earlier.gather(1, find_heads(batch, "segment")[1].clamp(min=0))  # before the segment's first decision
    return torch.where(earlier < 0, outside[:, None], q.gather(1, earlier.clamp(min=0)))

"""Credit for the nodes of a search tree, once for each shared step.

Left out: where `q` comes from; a rollout stamps it (`rollouts.tree`). Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from shuhari.batch import Batch
from shuhari.needs import Need
from shuhari.pack import usable
from shuhari.ports import Ctx
from shuhari.reduce import group_mean
from shuhari.registry import register
from shuhari.transforms.streams import ungraded


@register("transform", "node_advantage")
@dataclass
class NodeAdvantage:
    """Stamps `advantage` [B, K]: q(node) - the mean value of the group's answers, undivided, on every decision of the
    node; 0 elsewhere (DeepSearch, arXiv 2509.25454, section 3.4).

    An answer's value is 2 r - 1 of its `reward` r in [0, 1]. Where no search has said what a node is worth (column `q`
    [B, K] missing or NaN: plain samples, nodes that nothing was backed up to), it is the mean value of the graded
    answers below it. Rows without any get advantage 0 and weight 0 on `stream`, and are charged as `ungraded`.
    """

    reward: str = "reward"
    stream: str = "rl"
    needs: tuple[Need, ...] = field(default=(), init=False)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        r = batch.outcome(self.reward)
        missing = r.isnan() & usable(batch)
        below = (2 * r - 1).masked_fill(~usable(batch), torch.nan)  # [B]
        mean, _ = group_mean(batch, below)
        q = batch.get("q")
        q = below[:, None] if q is None else torch.where(q.isnan(), below[:, None], q)
        batch = ungraded(batch, missing, ctx, self.stream)
        a = (q - mean[:, None]).masked_fill(below.isnan()[:, None], 0.0)
        return batch.put({"advantage": a * batch["mask"]})

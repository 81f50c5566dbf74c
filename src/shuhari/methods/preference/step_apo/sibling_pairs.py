"""Pairs of sibling steps of a searched tree, with the difference of their advantages as a margin.

Source: "CPL: Critical Plan Step Learning Boosts LLM Generalization in Reasoning Tasks" (2024), Step-level Advantage
Preference Optimization. With `preference`, which subtracts a column `margin`, the loss of a pair is
-log sigmoid(beta (log-ratio of the better - of the worse step) - (A of the better - A of the worse)).

Axes: `B` rows, one for each step of a tree, `K` positions, `P` links.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, check
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import units
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import zero_weight


@register("transform", "sibling_pairs")
@dataclass
class SiblingPairs:
    """Pairs of next steps of one state, of which one leads to right answers more often than to wrong ones, the other
    does not.

    Reads columns [B, K] that a search stamps (`plan_search`): `q`, the value of a step in [-1, 1], NaN if unknown;
    `v`, that of the state before it; `last`, 1 if the answer ends with it; `right`, a weight, 0 if no right
    answer lies below.
    Makes the links "pairs" [P, 2] of (better, worse) rows with Q above 0 and below 0, and their column `margin` [P]:
    the difference of their advantages A = Q - V, of which V cancels. All such pairs of steps that go on count; of last
    steps only the best with the worst (all of a tie), their Q times `last`. A step that goes on is not paired with a
    last one. Steps in no pair have weight 0 on `stream`. Stamps `weight/value`, 1 at the first position of one row for
    each state, if `v` is known, and `weight/right`, which is `right`.
    """

    margin: AtLeast0 = 1.0
    """Factor of the difference of advantages; 0 is step-level DPO."""
    last: AtLeast0 = 0.3
    """Factor of Q of last steps, which are surer than others."""
    stream: str = "rl"
    """Stream on which steps in no pair get weight 0."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    stamps = ("links/pairs", "weight/value", "weight/right")

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return "q", "v", "last", "right", f"weight/{self.stream}"

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        usable, state, mask = find_usable(batch) & batch.decides, units(batch, "state"), batch["mask"]
        begins = mask & (mask.cumsum(1) == 1)  # [B, K] the first decision of a step
        q, v, last, right = (torch.where(begins, batch[x], 0.0).sum(1) for x in ("q", "v", "last", "right"))
        last = last > 0
        q = torch.where(last, self.last * q, q).masked_fill(~usable, torch.nan)
        alike = (state[:, None] == state) & (last[:, None] == last)  # [B, B] siblings of one kind
        best = q == torch.where(alike & ~q.isnan(), q, -torch.inf).amax(1)
        worst = q == torch.where(alike & ~q.isnan(), q, torch.inf).amin(1)
        pair = alike & (q[:, None] > 0) & (q < 0) & (~last[:, None] | (best[:, None] & worst))
        index = pair.nonzero()
        margin = self.margin * (q[index[:, 0]] - q[index[:, 1]])
        unpaired = torch.ones(len(batch), dtype=torch.bool).index_fill_(0, index.flatten(), False)
        valued = keep_first(state, usable & ~v.isnan())
        columns = {
            "weight/value": (begins & valued[:, None]).float(),
            "weight/right": mask * right.masked_fill(~usable, 0.0)[:, None],
        }
        return zero_weight(batch, unpaired, self.stream).put(columns).link("pairs", index, {"margin": margin})


def keep_first(unit: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Returns [B] bool: of the `rows` [B] the first of each `unit` [B]."""
    found = rows.nonzero()[:, 0]
    first = torch.full((int(unit.max()) + 1 if len(unit) else 0,), len(unit))
    first = first.scatter_reduce(0, unit[found], found, "amin")
    return rows & (torch.arange(len(unit)) == first[unit])

"""Credit by a model trained on outcomes alone: one right and one wrong sample per group, with weighted decisions.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Generator, Tensor

from shuhari.batch import Batch
from shuhari.bounds import ShareBelow1, check
from shuhari.kernel.reduce import ends, units
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import find_carried


@register("transform", "oreal")
@dataclass
class Credit:
    """Picks one right and one wrong answer per group to learn from, and weights their tokens by a learnt credit model
    (OREAL).

    Source: Lyu et al. 2025, arXiv 2502.06781. From each group with both, one right sample is chosen for the stream
    `pos` and one wrong one for `neg`, at random; `stream` keeps only these two. The stream `credit` has all samples of
    such groups, with equal weight for the right and the wrong side. The advantage of the two, which comes from the
    whole group (so put `advantage` under [collect]), is multiplied by

        max(p - least, 0) / (1 - least),   p = sigmoid(w) on the right sample, 1 - sigmoid(w) on the wrong one

    w being the value [B, K] that `role` gives each decision (objective `token_rewards`).
    """

    role: str = "credit"
    """Role of the credit model, which gives each token a value; "" leaves the advantages unchanged."""
    running: bool = False
    """Whether a token's value is the mean of the values so far, as in the released code."""
    mean_one: bool = False
    """Whether the weights on either side are divided by their mean, so that steps keep their size; otherwise weights
    near 0 shorten them."""
    least: ShareBelow1 = 0.5
    """Probability below which a token gets weight 0; 0.5 is the paper's max(2 sigmoid(w) - 1, 0)."""
    threshold: float = 0.5
    """Outcome above which an answer is right."""
    reward: str = "reward"
    """Reward column that is the outcome of an answer; `reward` is the weighted sum that is trained."""
    stream: str = "rl"
    """Name of the weights `weight/<stream>` that are reduced to the chosen answers."""
    stamps = ("advantage", "weight/pos", "weight/neg", "weight/credit")
    least_n = 2

    @property
    def reads(self) -> tuple[str, ...]:
        return self.reward, f"weight/{self.stream}", "advantage"

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "value"),) if self.role else ()

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        outcome, mask = batch.outcome(self.reward), batch["mask"]
        right, carries = outcome > self.threshold, find_carried(batch, self.stream) & ~outcome.isnan()
        side = 2 * units(batch, "group") + right
        samples = ends(batch) & carries
        pairs = draw_pairs(side, samples, ctx.rng("credit"))
        pick = torch.isin(batch["episode"], batch["episode"][pairs])  # with all its rows
        advantage = batch["advantage"]
        if self.role:
            w = batch[self.needs[0]]
            if self.running:
                w = (w * mask).cumsum(1) / mask.cumsum(1).clamp(min=1)
            p = torch.where(right[:, None], w, -w).sigmoid()
            weight = (p - self.least).clamp(min=0) / (1 - self.least)
            for chosen in (pick & right, pick & ~right) if self.mean_one else ():
                here = chosen[:, None] & mask
                weight = torch.where(here, weight / weight[here].mean().clamp(min=1e-6), weight)
            advantage = advantage * weight
        streams = {"pos": pick & right, "neg": pick & ~right, self.stream: pick}
        balance = torch.where(carries, balance_sides(side, samples), 0.0)
        weights = {"credit": balance, **{name: rows.float() for name, rows in streams.items()}}
        columns = {f"weight/{name}": weight[:, None] * mask for name, weight in weights.items()}
        return batch.put({"advantage": advantage, **columns})


def draw_pairs(side: Tensor, samples: Tensor, rng: Generator) -> Tensor:
    """Returns [B] bool: one random sample of either side among the `samples` [B] of each group that has both; side [B]
    is twice the number of the group, plus 1 for right ones."""
    rank, n = torch.randperm(len(side), generator=rng), _count_groups(side)
    first = torch.full((2 * n,), len(side)).scatter_reduce(0, side[samples], rank[samples], "amin")
    both = (first.view(n, 2) < len(side)).all(1)
    return samples & (rank == first[side]) & both[side // 2]


def balance_sides(side: Tensor, samples: Tensor) -> Tensor:
    """Returns [B] weights that give the two sides of a group equal weight, 1 on average; 0 if it has only one side."""
    count = torch.bincount(side[samples], minlength=2 * _count_groups(side)).view(-1, 2)
    return (count.sum(1)[side // 2] / (2 * count.view(-1)[side].clamp(min=1))) * (count > 0).all(1)[side // 2]


def _count_groups(side: Tensor) -> int:
    return int(side.max()) // 2 + 1 if len(side) else 0

"""A limit on the cost of an episode, in the columns that losses read: the excess over it, and its price.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, check
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.ports import Ctx


@register("transform", "constrain")
@dataclass
class Constrain:
    """A limit on the cost of an episode, and its price in the advantage (PPO-Lagrangian).

    Centres the column `costs` over the decisions, and stamps the constant columns `excess`, J - limit, and
    `excess_rate`, (J - limit) / L [B, K]: J is the undiscounted cost of an episode, L its length, each the sum over the
    batch divided by the number of episodes that begin in it. With a `multiplier` lambda the advantage A becomes (A -
    lambda A_cost) / (1 + lambda) (Ray et al. 2019, "Benchmarking Safe Exploration in Deep Reinforcement Learning").
    Costs are not scaled: near a limit of 0 they are rare, and their deviation is no measure of their importance.
    """

    limit: AtLeast0
    """Largest undiscounted cost of an episode that is allowed, in units of the cost."""
    cost: str = "reward/cost"
    """Column with the cost of each decision."""
    costs: str = "cost_advantage"
    """Column [B, K] with the advantages of the cost, which a second `gae` computes; they are centred here."""
    multiplier: str = ""
    """Role of the Lagrange multiplier whose value is the price of the cost; "" leaves the advantage as it is."""
    share: bool = True
    """Divide the priced advantage by 1 + the multiplier, which keeps its size; false for FOCOPS."""
    advantage: str = "advantage"
    """Column with the advantages from which the priced cost is subtracted."""
    needs: tuple[Need, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.multiplier,) if self.multiplier else ()

    @property
    def reads(self) -> tuple[str, ...]:
        return self.cost, self.costs, *((self.advantage,) if self.multiplier else ())

    @property
    def stamps(self) -> tuple[str, ...]:
        return self.costs, "excess", "excess_rate", *((self.advantage,) if self.multiplier else ())

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        mask, costs = batch["mask"], batch[self.costs]
        costs = (costs - costs[mask].mean()) * mask
        n = max(1, count_begun(batch))
        excess = float(batch[self.cost][mask].sum()) / n - self.limit
        rate = excess * n / int(mask.sum())
        columns = {self.costs: costs, "excess": costs.new_full(mask.shape, excess)}
        columns["excess_rate"] = costs.new_full(mask.shape, rate)
        if self.multiplier:
            model: Any = role_model(ctx.models, self.multiplier)
            price: Tensor = model(batch).value().detach()
            mixed = batch[self.advantage] - price * costs
            columns[self.advantage] = mixed / (1 + price) if self.share else mixed
        return batch.put(columns)


def count_begun(batch: Batch) -> int:
    """Returns the number of episodes that begin in a batch: those whose first row does not continue an earlier one
    (`resumes`)."""
    rows = batch.decides.nonzero().squeeze(1)
    named, place = torch.unique(batch["episode"][rows], return_inverse=True)
    first = rows.new_full((len(named),), len(batch)).scatter_reduce(0, place, rows, "amin")
    resumed = batch.get("resumes")
    return len(named) if resumed is None else int((~resumed[first]).sum())

"""Behaviour cloning in a table: smoothed shares of the recorded actions.

Source: Tiapkin et al., "Demonstration-Regularized RL" (ICLR 2024), section 3, maximum likelihood with a regulariser
whose optimum is Laplace's rule. Axes: `S` states, `A` actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Positive, check
from shuhari.data import EMPTY
from shuhari.events import Updated
from shuhari.kernel.registry import register
from shuhari.learners.tables import find_table
from shuhari.needs import Need
from shuhari.ports import Buffer, Ctx, Model, Transform


@register("learner", "clone")
@dataclass
class Clone:
    """Clones recorded decisions in a tabular policy: (N(s, a) + prior) / (N(s) + A prior), uniform where nobody was.

    A decision counts once, however often it is drawn. Reports `clone/decisions` so far. Raises TypeError for a policy
    without a table.
    """

    buffer: Buffer
    """Buffer that recorded decisions are drawn from, such as `offline`."""
    transforms: Mapping[str, Transform] = EMPTY
    """Transforms by name, applied in this order to every drawn batch."""
    prior: Positive = 1.0
    """Number of decisions that each action is taken to have had before, above 0; no action has probability 0."""
    role: str = "policy"
    """Role of the tabular policy that is cloned into."""
    name: str = "main"
    """Name of the learner in its reports and events."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    state: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def bind(self, models: Mapping[str, Model]) -> None:
        self._table: Tensor = find_table(models, self.role, "clone")
        if not self.state:
            self.state = {
                "visits": torch.zeros(self._table.shape, dtype=torch.double),
                "counted": torch.zeros(0, dtype=torch.long),
            }

    @torch.no_grad()
    def update(self, batch: Batch, ctx: Ctx) -> Updated:
        """Counts the drawn decisions, and writes the policy."""
        mine, rows = self.state, batch.take(batch.decides)
        ids, first = rows["id"].unique(return_inverse=True)
        keep = torch.zeros(len(ids), dtype=torch.long).scatter_(0, first, torch.arange(len(rows)))  # one row of each
        rows = rows.take(keep[~torch.isin(ids, mine["counted"])])
        mine["counted"] = torch.cat([mine["counted"], rows["id"]])
        at = rows["context"].view(-1).long(), rows["action"].view(-1).long()
        mine["visits"].index_put_(at, torch.ones(len(rows), dtype=torch.double), accumulate=True)
        share = mine["visits"] + self.prior
        self._table.copy_((share / share.sum(1, keepdim=True)).log())
        return Updated(self.name, {"clone/decisions": float(mine["visits"].sum())}, batch["id"])

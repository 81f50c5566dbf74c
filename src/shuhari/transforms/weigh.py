"""Imitation by worth: a stream on which better decisions weigh more.

Axes: `B` rows, `K` positions.

Sources: Peng et al. 2019, "Advantage-Weighted Regression" (AWR), Algorithm 1; with no baseline, Peters
and Schaal 2007, "Reinforcement Learning by Reward-Weighted Regression".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from shuhari.batch import Batch
from shuhari.bounds import Bounds, Ratio, check
from shuhari.data import Number
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import weights_on, whiten


@register("transform", "advantage_weights")
@dataclass
class Weigh:
    """Weights for advantage-weighted regression: a stream on which better decisions weigh more.

    Stamps `weight/<stream>` [B, K]: min(exp(A / temperature), most) on the decisions of stream `of`, 0 elsewhere, A the
    `column` less the `baseline`; 0 if A is unknown (NaN). Use them in a term with that stream: `terms.nll = {stream =
    "<stream>"}`. Raises ValueError for a weight that is not finite.
    """

    column: str = "advantage"
    """Column [B] or [B, K] that rates the decisions: `advantage`, or of recorded data `to_go`, the rewards still to
    come."""
    baseline: str = ""
    """Role of the critic whose value is subtracted from the column; "" subtracts nothing."""
    temperature: Annotated[Number, Bounds(0, open="low")] = 1.0
    """Temperature of the weights, in units of the advantage; smaller imitates only the best decisions."""
    most: Ratio = 20.0
    """Upper bound of the weights; inf for none, 20 is AWR's."""
    scale: Literal["none", "batch"] = "none"
    """Normalisation of the advantages before they are weighed: mean 0 and standard deviation 1 over the `batch`, or
    `none`."""
    of: str = "rl"
    """Stream whose decisions are weighed; others get weight 0."""
    stream: str = "worth"
    """Stream that receives the weights, which a loss term names as its `stream`."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.baseline,), "value"),) if self.baseline else ()

    @property
    def reads(self) -> tuple[str, ...]:
        return self.column, f"weight/{self.of}"

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"weight/{self.stream}",)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        worth = batch[self.column]
        worth = worth if worth.dim() == 2 else worth[:, None]
        if self.needs:
            value = batch[self.needs[0]]
            worth = worth - (value.mean(2) if value.dim() == 3 else value)
        carried = weights_on(batch, self.of)
        known = ~worth.isnan() & batch["mask"] & (carried != 0)
        worth = worth.masked_fill(~known, 0.0)
        if self.scale == "batch":
            worth = whiten(worth, known)
        weight = (worth / ctx.at(self.temperature)).exp().clamp(max=ctx.at(self.most))
        weight = torch.where(known, weight * carried, 0.0)
        if not bool(weight.isfinite().all()):
            raise ValueError(f"weigh: exp({self.column} / temperature) is not finite: lower `most`"
                             " or raise `temperature`")
        return batch.put({f"weight/{self.stream}": weight})

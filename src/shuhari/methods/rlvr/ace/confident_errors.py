"""Advantages scaled by how confident the policy has become: errors with increased confidence count more.

Source: "Overconfident Errors Need Stronger Correction: Asymmetric Confidence Penalties for Reinforcement Learning"
(ACE, arXiv 2602.21420). Left out: the advantage itself.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import torch
from torch.nn import functional as F

from shuhari.batch import Batch
from shuhari.bounds import Bounds, check
from shuhari.data import Number
from shuhari.kernel.ratio import log_ratio
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import weights_on


@register("transform", "confident_errors")
@dataclass
class Modulate:
    """Enlarges the negative advantage of wrong answers that are more probable under the policy than under the reference
    (ACE).

    Replaces column `advantage` [B, K]: a negative one is multiplied by min(1 + alpha g(c), most). c: the log of the
    answer's probability at sampling over that under the role `to`, nats. A decision with unknown probability at
    sampling (NaN) adds nothing to c.
    """

    alpha: Annotated[Number, Bounds(0)] = 1.0
    """Strength of the correction, or a schedule; 0 turns it off."""
    shape: Literal["softplus", "relu"] = "softplus"
    """Function g of the log-ratio c: "softplus", or "relu", which leaves answers unchanged that have not become more
    probable."""
    level: Literal["row", "sequence"] = "row"
    """Log-ratio c of an answer: "row" sums over its tokens, "sequence" takes their mean, for long answers."""
    most: Annotated[float, Bounds(1, infinite=True)] = 5.0
    """Largest factor on an advantage; inf is no limit."""
    evenly: bool = False
    """Whether all negative advantages get the mean of the factors: a control of the same size without confidence."""
    to: str = "reference"
    """Role of the reference that the policy is compared with."""
    advantage: str = "advantage"
    """Name of the column with the advantage, which is replaced."""
    stream: str = "rl"
    """Name of the weights `weight/<stream>` of the loss; with `evenly` only its tokens count in the mean."""

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.to,), "log_prob"),)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.advantage, f"weight/{self.stream}"

    @property
    def stamps(self) -> tuple[str, ...]:
        return (self.advantage,)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        a, said, reference = batch[self.advantage], batch["logp"], batch[self.needs[0]]
        c = log_ratio(torch.where(said.isnan(), reference, said), reference, batch, self.level)
        surer = F.softplus(c) if self.shape == "softplus" else F.relu(c)
        factor = (1.0 + ctx.at(self.alpha) * surer).clamp(max=self.most)
        wrong = a < 0
        if self.evenly:
            counted = wrong & (weights_on(batch, self.stream) != 0)
            factor = factor[counted].mean() if bool(counted.any()) else factor
        return batch.put({self.advantage: torch.where(wrong, a * factor, a)})

"""Advantages scaled by how sure the policy has become: errors that it is surer of than it was count for more.

Source: "Overconfident Errors Need Stronger Correction: Asymmetric Confidence Penalties for Reinforcement Learning"
(ACE, arXiv 2602.21420). Left out: whatever the advantage itself is.

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
    """Replaces column `advantage` [B, K]: where it is negative it is multiplied by min(1 + alpha g(c), most). c: the
    log of the answer's probability as it was sampled over that under the role `to`, nats. What is not negative stays.

    g: `shape`, softplus or relu. level: c of the whole `row`, a sum, or its mean a decision, `sequence`. evenly: all
    negative decisions of `stream` get the mean of their factors, a control of the same size without confidence. alpha
    is at least 0, most at least 1. A decision whose probability at sampling is not known (NaN) adds nothing to c.
    """

    alpha: Annotated[Number, Bounds(0)] = 1.0
    shape: Literal["softplus", "relu"] = "softplus"
    level: Literal["row", "sequence"] = "row"
    most: Annotated[float, Bounds(1, infinite=True)] = 5.0
    evenly: bool = False
    to: str = "reference"
    advantage: str = "advantage"
    stream: str = "rl"

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

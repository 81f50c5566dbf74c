"""Regression of reward differences on differences of log-ratios, in proximal updates (PRDP).

Source: Deng et al. 2024, "PRDP: Proximal Reward Difference Prediction for Large-Scale Reward Finetuning of Diffusion
Models", arXiv 2402.08714. With a wide clip it is `log_ratio` with the square link and centre `leave-one-out` (CoPG), at
the same scale.

Axes: `B` rows, `K` positions (steps of denoising, tokens).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Bounds, Coefficient, check
from shuhari.data import Info
from shuhari.kernel.ratio import log_ratio
from shuhari.kernel.reduce import ends, units
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("objective", "proximal_pairs")
@dataclass
class ProximalPairs:
    """Regresses differences of log-ratios between samples of one prompt on differences of their rewards (PRDP).

    [B]: for a sample, the mean over its pairs with the other samples of its group; reduce it by `row`. For a pair: the
    larger of ((A - A') - beta (s - s'))² with s the log-ratio of a row to the role `over`, and the same with the
    log-ratio of each decision clipped to within `hold` of its value before the update, so that larger steps gain
    nothing. The loss is that less (A - A')², which has no gradient, times n / (4 beta (n - 1)), n the samples of the
    group; so beta may be 0. A is column `advantage`: the reward, if `advantage` has centre and scale `none`. Info:
    `log_ratio` (s), `held`, the share of decisions whose log-ratio is clipped.
    """

    beta: Coefficient = 1.0
    """Strength of the KL penalty, in units of the advantage per nat; 0 is none."""
    hold: Annotated[float, Bounds(0, infinite=True)] = 1e-4
    """Largest change of each decision's log-ratio in an update, in nats; inf clips nothing."""
    over: str = "reference"
    """Role of the reference that the log-ratio is over."""
    role: str = "policy"
    """Role of the policy that is trained."""
    advantage: str = "advantage"
    """Name of the column with the advantage, or with the reward."""
    score: str = "log_prob"
    """Score of each decision that log-ratios are made of: `log_prob`, or another method of the model's
    distributions."""
    couples: Literal["row", "batch"] = field(default="batch", init=False)
    stamps = ()
    least_n = 2

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.advantage,)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return Need((self.role,), self.score, live=True), Need((self.over,), self.score), Need((self.role,), self.score)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        beta, mask = ctx.at(self.beta), batch["mask"]
        new, known, old = (batch[need] for need in self.needs)
        near = new.detach().clamp(old - self.hold, old + self.hold)
        clipped = near != new
        s = log_ratio(new, known, batch).sum(1)
        held = log_ratio(torch.where(clipped, near, new), known, batch).sum(1)  # no gradient where clipped
        a = (batch[self.advantage] * mask).sum(1) / mask.sum(1).clamp(min=1)  # the same at each decision
        group = units(batch, "group")
        others = (group[:, None] == group) & ends(batch) & ~torch.eye(len(s), dtype=torch.bool)  # [B, B]
        n = others.sum(1) + 1

        def pairs(x: Tensor) -> Tensor:
            """Returns [B, B] the square of each pair less (A - A')², over 2 beta."""
            apart = x[:, None] - x
            return beta / 2 * apart.square() - (a[:, None] - a) * apart

        loss = torch.where(others, torch.maximum(pairs(s), pairs(held)), 0.0).sum(1)
        loss = loss * n / (2 * (n - 1).clamp(min=1).square())
        return loss, {"log_ratio": s.detach(), "held": (clipped & mask).sum(1) / mask.sum(1).clamp(min=1)}

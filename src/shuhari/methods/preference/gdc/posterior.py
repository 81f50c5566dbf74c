"""Advantages that lead to a posterior: the start of the policy, tilted by the reward.

Source: Korbak et al. 2022, "RL with KL penalties is better viewed as Bayesian inference", section 4 and equation 12;
the estimate of Z for each prompt, and the baseline, from their "Controlling Conditional Language Models without
Catastrophic Forgetting" (2022), algorithm 1. Left out: constraints on moments, whose factors are found beforehand.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from shuhari.batch import Batch
from shuhari.bounds import Bounds, check
from shuhari.data import Number
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import units
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import zero_ungraded


@register("transform", "posterior")
@dataclass
class Posterior:
    """Advantages of distributional policy gradients: how much more probable an answer is under p* than it was drawn.

    p*(y) = start(y) exp(r(y) / beta) / Z. Stamps `advantage` [B, K], one number a row, p*(y) / q(y) - 1, with q the
    distribution that the answer was drawn from, and Z the mean of start exp(r / beta) / q over the answers to its
    prompt. With REINFORCE (`clip` with `behaviour = "present"`) its gradient is that of KL(p* || policy), whoever drew
    the answers. The mean over a group is 0. An ungraded answer gets 0 and no weight. Raises ValueError for answers
    whose log-probability is not known.
    """

    beta: Annotated[Number, Bounds(0, open="low")] = 0.1
    """Price of the KL to the start, in units of the reward per nat; smaller tilts more."""
    start: str = "reference"
    """Role of the policy at the start, a frozen one."""
    stream: str = "rl"
    """Stream that loses weight on ungraded rows."""
    stamps = ("advantage",)
    least_n = 2

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.start,), "log_prob"),)

    @property
    def reads(self) -> tuple[str, ...]:
        return "reward", f"weight/{self.stream}"

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        mask = batch["mask"]
        gap = torch.where(mask, batch[self.needs[0]] - batch["logp"], 0.0).sum(1)
        reward = torch.where(mask, batch["reward"], 0.0).sum(1)
        usable, unit = find_usable(batch) & batch.decides, units(batch, "group")
        if bool(gap[usable].isnan().any()):
            raise ValueError("posterior: the log-probability of an answer as it was drawn is unknown: expected samples")
        known = usable & ~reward.isnan()
        tilt = (gap + reward / ctx.at(self.beta)).double().masked_fill(~known, -torch.inf)
        n = int(unit.max()) + 1 if len(unit) else 0
        top = tilt.new_full((n,), -torch.inf).scatter_reduce(0, unit, tilt, "amax")
        share = (tilt - top[unit]).exp().masked_fill(~known, 0.0)
        total, count = (tilt.new_zeros(n).index_add_(0, unit, x) for x in (share, known.double()))
        advantage = torch.where(known, share * (count / total)[unit] - 1, 0.0).float()
        batch = zero_ungraded(batch, usable & ~known, ctx, self.stream)
        return batch.put({"advantage": torch.where(mask, advantage[:, None], 0.0)})

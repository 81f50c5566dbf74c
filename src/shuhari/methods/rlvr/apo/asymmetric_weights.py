"""Separate treatment of right and wrong answers: a KL weight by difficulty, and more blame for long wrong answers.

Source: "APO: Enhancing Reasoning Ability of MLLMs via Asymmetric Policy Optimization" (arXiv 2506.21655), DADS and
STCR, as in the released code. Left out: the advantage itself; answers of several rows.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import e
from typing import Annotated, Literal

import torch

from shuhari.batch import Batch
from shuhari.bounds import Bounds, check
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import ends, group_mean
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import weights_on


@register("transform", "asymmetric_weights")
@dataclass
class Asymmetric:
    """Weakens the KL penalty on right answers to hard prompts, and blames wrong answers more if they are longer than
    the right ones (APO).

    Stamps `weight/<into>` [B, K], that of `stream` times kappa, for a divergence on that stream; and replaces column
    `advantage` [B, K]: that of a wrong answer that is delta > 0 longer than the mean of its group's right ones is
    multiplied by 2 - base^-delta.

    kappa: 1 - e^(-e p) if the advantage is above 0, with p the share of right answers in the group, so that rare right
    answers are hardly held to the reference; 1 if all or none of the group are right, and if the advantage is not above
    0. Ungraded answers do not count. A length is the row's number of decisions. A group without a right answer has
    factors of 1. Raises ValueError for an answer of several rows.
    """

    base: Annotated[float, Bounds(1, open="low")] = 1.00001
    """Base of the length factor, above 1: 1.00001 for thousands of tokens; 1 + 1 / L for answers of up to L tokens
    makes the largest factor 1.63."""
    shape: Literal["both", "kl", "length"] = "both"
    """Active part of the method: the KL weights ("kl"), the blame for long wrong answers ("length"), or "both"."""
    solved: float = 1.0
    """Smallest outcome of a right answer."""
    reward: str = "reward/score"
    """Reward column that decides whether an answer is right; `reward` is the weighted sum that is trained."""
    advantage: str = "advantage"
    """Name of the column with the advantage, which is replaced."""
    stream: str = "rl"
    """Name of the weights `weight/<stream>` of the policy loss, on which the KL weights are based."""
    into: str = "kl"
    """Name of the stream with the KL weights; give it to the term `divergence`."""
    needs: tuple[Need, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.advantage, self.reward, f"weight/{self.stream}"

    @property
    def stamps(self) -> tuple[str, ...]:
        return self.advantage, f"weight/{self.into}"

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        if bool((batch.decides & ~ends(batch)).any()):
            raise ValueError("asymmetric: an answer has several rows: expected one, whose length is the answer's")
        a, mask = batch[self.advantage], batch["mask"]
        outcome = batch.outcome(self.reward).masked_fill(~find_usable(batch), torch.nan)
        right = torch.where(outcome.isnan(), torch.nan, (outcome >= self.solved).float())  # [B]
        share = group_mean(batch, right)[0].nan_to_num(1.0)  # [B]
        some = (share > 0) & (share < 1)
        kappa = torch.where((a > 0) & some[:, None], 1 - torch.exp(-e * share)[:, None], 1.0)
        kl = weights_on(batch, self.stream) * (1.0 if self.shape == "length" else kappa)
        length = mask.sum(1).float()
        usual = group_mean(batch, torch.where(right > 0, length, torch.nan))[0]  # NaN without a right one
        beyond = ((length - usual) * (right == 0)).nan_to_num(0.0).clamp(min=0.0)
        factor = torch.ones_like(length) if self.shape == "kl" else 2.0 - self.base**-beyond
        return batch.put({self.advantage: a * factor[:, None], f"weight/{self.into}": kl})

"""Rewards changed before credit is assigned.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from shuhari.batch import Batch
from shuhari.bounds import Coefficient, Length, check
from shuhari.data import Number
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.objectives.divergence import estimate
from shuhari.ports import Ctx


@register("transform", "kl_in_reward")
@dataclass
class KlInReward:
    """Subtracts beta times an estimate of KL(policy || reference) from column `reward`, decision by decision.

    Stamps what it added as `reward/kl` [B, K] (<= 0 on average, 0 where nothing was decided). Both log-probabilities
    are scored before the update. form: `k1` (unbiased, the usual choice: Ouyang et al. 2022, equation 2), `k2`, `k3`
    (see `divergence`). score: the method of both distributions that is compared. beta >= 0. It comes before `gae`,
    `returns` or `advantage`. Ungraded rewards stay NaN.
    """

    beta: Coefficient = 0.05
    form: Literal["k1", "k2", "k3"] = "k1"
    role: str = "policy"
    reference: str = "reference"
    score: str = "log_prob"
    stamps = ("reward", "reward/kl")

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> tuple[Need, ...]:
        return Need((self.role,), self.score), Need((self.reference,), self.score)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        new, reference = (batch[n] for n in self.needs)
        penalty = -ctx.at(self.beta) * torch.where(batch["mask"], estimate(self.form, new, reference), 0.0)
        return batch.put({"reward": batch["reward"] + penalty, "reward/kl": penalty})


@register("transform", "overlong")
@dataclass
class Overlong:
    """Soft overlong punishment: adds to column `reward` what DAPO's equation 13 says of an answer of n decisions.

    0 up to n = length - cache, from there linear to -1 at n = length, -1 beyond; times `weight`. It falls on the last
    decision of the row, and is stamped as `reward/overlong` [B, K] (<= 0). `length` is that of the longest answer that
    sampling allows (`max_new`), so that an answer cut there loses all of it; 0 < cache <= length. Put it before
    `advantage`, and after `mixed`, which then compares the answers' own rewards. Ungraded rewards stay NaN.
    Source: Yu et al. 2025, arXiv 2503.14476. Overlong filtering is the filter `finished`.
    """

    length: Length
    cache: Length
    weight: Number = 1.0
    needs: tuple[Need, ...] = field(default=(), init=False)
    stamps = ("reward", "reward/overlong")

    def __post_init__(self) -> None:
        check(self)
        if self.cache > self.length:
            raise ValueError(f"overlong: cache is {self.cache}: expected at most length, which is {self.length}")

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        place = batch["mask"].cumsum(1)
        n = place[:, -1:]  # [B, 1]
        punishment = ctx.at(self.weight) * ((self.length - self.cache - n) / self.cache).clamp(-1.0, 0.0)
        cost = torch.where(batch["mask"] & (place == n), punishment, 0.0)
        return batch.put({"reward": batch["reward"] + cost, "reward/overlong": cost})

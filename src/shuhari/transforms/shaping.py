"""Changes rewards before credit assignment.

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
    """The KL penalty in the reward, per decision, as in InstructGPT's PPO and RLOO.

    Subtracts beta times an estimate of KL(policy || reference) from column `reward` (Ouyang et al. 2022, equation 2),
    and stamps the added part as `reward/kl` [B, K] (<= 0 on average, 0 at positions without a decision). Both
    log-probabilities are scored before the update. It comes before `gae`, `returns` or `advantage`. Ungraded rewards
    stay NaN.
    """

    beta: Coefficient = 0.05
    """Coefficient of the KL penalty, in units of reward per nat; 0 is off."""
    form: Literal["k1", "k2", "k3"] = "k1"
    """Estimator of the KL from the decision taken: `k1` (the log-ratio, unbiased and usual), `k2` or `k3`."""
    role: str = "policy"
    """Role of the policy whose divergence is penalised."""
    reference: str = "reference"
    """Role of the reference model that the policy is held near."""
    score: str = "log_prob"
    """Method of both distributions that is compared; `log_prob` unless the model has only a bound."""
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
    """DAPO's soft overlong punishment: a growing penalty as an answer of n decisions nears its length limit.

    Adds to column `reward` equation 13: 0 up to n = length - cache, from there linear to -1 at n = length, -1 beyond;
    times `weight`. It applies to the last decision of the row, and is stamped as `reward/overlong` [B, K] (<= 0). Put
    it before `advantage`, and after `drop_uniform_groups`, which then compares the answers' own rewards. Ungraded
    rewards stay NaN. Source: Yu et al. 2025, arXiv 2503.14476. Overlong filtering is the filter `drop_truncated`.
    Raises ValueError for a cache above the length.
    """

    length: Length
    """Answer length, in tokens, at which the penalty is full; set it to the sampling limit `max_new`."""
    cache: Length
    """Number of tokens before that limit over which the penalty grows from 0, at most `length`."""
    weight: Number = 1.0
    """Size of the full penalty, in units of reward."""
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

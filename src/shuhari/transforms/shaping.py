"""Rewards changed before credit is assigned.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shuhari.batch import Batch
from shuhari.data import Number, nearest
from shuhari.needs import Need
from shuhari.objectives.divergence import SAMPLED, estimate
from shuhari.ports import Ctx
from shuhari.registry import register


@register("transform", "kl_in_reward")
@dataclass
class KlInReward:
    """Subtracts beta times an estimate of KL(policy || reference) from column `reward`, decision by decision.

    Stamps what it added as `reward/kl` [B, K] (<= 0 on average, 0 where nothing was decided). Both log-probabilities
    are scored before the update. form: `k1` (unbiased, the usual choice: Ouyang et al. 2022, equation 2), `k2`, `k3`
    (see `divergence`). beta >= 0. It comes before `gae`, `returns` or `advantage`. Ungraded rewards stay NaN.
    """

    beta: Number = 0.05
    form: str = "k1"
    role: str = "policy"
    reference: str = "reference"

    def __post_init__(self) -> None:
        if self.form not in SAMPLED:
            raise ValueError(f"no form {self.form!r} of KL in the reward; {nearest(self.form, SAMPLED)}")

    @property
    def needs(self) -> tuple[Need, ...]:
        return Need((self.role,), "log_prob"), Need((self.reference,), "log_prob")

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        new, reference = (batch[n] for n in self.needs)
        penalty = -ctx.at(self.beta) * torch.where(batch["mask"], estimate(self.form, new, reference), 0.0)
        return batch.put({"reward": batch["reward"] + penalty, "reward/kl": penalty})

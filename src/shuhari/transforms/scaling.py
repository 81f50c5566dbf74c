"""Divides rewards by the running standard deviation of the discounted return.

Leaves out centring, which would change the task. Axes: `B` rows, `K` positions, `N` lanes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Discount, Positive, check
from shuhari.kernel.registry import register
from shuhari.models.normaliser import Moments, moments
from shuhari.needs import Need, role_model
from shuhari.ports import Ctx, ability


@register("transform", "scale_rewards")
@dataclass
class ScaleRewards:
    """Reward normalisation by the running standard deviation of the return, as in Stable-Baselines3's VecNormalize.

    Divides the column `reward` [B, K] by the standard deviation of R_t = gamma R_{t-1} + r_t over all decisions
    collected so far, including these, and clips it (NormalizeReward of Gymnasium). A transform of `[collect]`, where
    each decision passes once. The statistic is part of the critic's model (with `returns = true`), saved and exported
    with it; each lane's current R is in `state`. R begins at 0 in every episode. `reward/<name>`, evaluation and
    reported returns are unchanged. Ungraded rewards stay NaN and count as 0. Raises ValueError for a critic without the
    statistic, and for a draw from a buffer.
    """

    gamma: Discount = 0.99
    """Discount factor of the return whose deviation is measured; the same as the learner's."""
    critic: str = "critic"
    """Role of the critic whose model keeps the running statistic; it needs `returns = true`."""
    clip: Positive = 10.0
    """Bound on the size of a scaled reward, on either side of 0."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"returns": torch.zeros(0, dtype=torch.float64)})
    stamps = ("reward",)

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.critic,)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        if batch.rows is not None:
            raise ValueError(
                "scale_rewards: these rows are drawn from a buffer: put it under [collect], not [transform]"
            )
        statistic: Moments | None = ability(role_model(ctx.models, self.critic), "return_statistic")
        if statistic is None:
            raise ValueError(
                f"scale_rewards: the model of role {self.critic!r} keeps no moments of the return: set "
                f"[models.{self.critic}] returns = true"
            )
        decides = batch.decides
        if bool(decides.any()):
            statistic.take(moments(self._returns(batch, ctx.at(self.gamma))[decides]))
        scaled = batch["reward"] / statistic.std.float()
        return batch.put({"reward": scaled.clamp(-self.clip, self.clip)})

    def _returns(self, batch: Batch, gamma: float) -> Tensor:
        """Returns [B] R of each row, by doubling the stretch of rows that is summed; a resumed row continues from the
        lane's R."""
        up = batch["parent"]
        total = batch["reward"].double().nan_to_num(0.0).sum(1)
        lane = batch["lane"]
        if "resumes" in batch:
            before, again = self.state["returns"], batch["resumes"]
            if bool(again.any()):
                total[again] += before[lane[again]]
        c = torch.where(up >= 0, gamma, 0.0).double()
        up = up.clamp(min=0)
        while bool((c != 0).any()):
            total, c, up = total + c * total[up], c * c[up], up[up]
        if "resumes" in batch:  # the last row of each lane has no decision yet: its R carries over, discounted
            self.state["returns"] = total[-(int(lane.max()) + 1) :].clone()
        return total

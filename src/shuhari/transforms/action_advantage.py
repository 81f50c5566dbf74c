"""How much better a decision is than what the policy would do in its place, by a critic of actions.

Axes: `B` rows, `K` positions of a decision (its first counts), `A` action dimensions, `n` members of the critic.

Source: Nair et al. 2020, "AWAC: Accelerating Online Reinforcement Learning with Offline Datasets", algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Length, check
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.objectives.reparam import combine_members
from shuhari.objectives.td import member_values
from shuhari.ports import Ctx


@register("transform", "action_advantage")
@dataclass
class ActionAdvantage:
    """The advantage of a decision over the policy's own, by a critic Q(s, a) (AWAC).

    Stamps `advantage` [B, K]: Q(s, a) - mean of Q(s, a') over `samples` actions a' that the policy draws afresh, on the
    decisions; 0 elsewhere. Q combines the members of the critic. The transform `advantage_weights` makes weights of it,
    by which `terms.nll` imitates (Nair et al. 2020, equation 13)."""

    role: str = "policy"
    """Role of the policy that draws the actions to compare with."""
    critic: str = "critic"
    """Role of the critic Q(s, a) that values them."""
    samples: Length = 1
    """Actions that are drawn in each state; more make the advantage less noisy, the mean over them is V(s)."""
    over: Literal["min", "mean", "first"] = "min"
    """Combination of the critic's members into one value: their `min`, their `mean`, or the `first` alone."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    stamps = ("advantage",)
    reads = ("action",)

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.critic

    @torch.no_grad()
    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        policy: Any = role_model(ctx.models, self.role)(batch)
        drawn = [policy.rsample(ctx.noise(batch, f"a{i}"))[0] for i in range(self.samples)]
        own = torch.stack([self._value(batch.put({"action": action}), ctx) for action in drawn]).mean(0)
        gap = self._value(batch, ctx) - own
        return batch.put({"advantage": gap[:, None] * batch["mask"]})

    def _value(self, batch: Batch, ctx: Ctx) -> Tensor:
        """[B] of the action that the batch has."""
        critic: Any = role_model(ctx.models, self.critic)
        return combine_members(member_values(critic(batch).value()), self.over)

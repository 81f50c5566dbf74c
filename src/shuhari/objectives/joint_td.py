"""CrossQ's temporal difference: no target network; one forward values decisions and what follows them.

Axes: `B` rows, `n` members of the critic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Discount, Length, check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.objectives.td import member_values, td_target
from shuhari.ports import Ctx, ability


@register("objective", "joint_td")
@dataclass
class JointTD:
    """CrossQ's critic loss: as `soft_td`, but the trained critic itself values the next actions, in one forward with
    those that were taken, normalised by the moments of both together.

    (Q(s, a) - y)² / 2 summed over the members of the critic, [B]; y = r + gamma · cont' · (min Q(s', a') -
    temperature · log pi(a'|s')), a' fresh from the policy, without gradient (Bhatt et al. 2024, "CrossQ: Batch
    Normalization in Deep Reinforcement Learning for Greater Sample Efficiency and Simplicity", section 3). Info:
    `value`, `target`. Stamps `td_error` [B]. ValueError for a critic that does not normalise by its batch.
    """

    gamma: Discount = 0.99
    """Discount factor of future rewards, in [0, 1]."""
    role: str = "critic"
    """Role of the critic that is trained, a name under `[models]`; it has `renorm`."""
    policy: str = "policy"
    """Role of the policy that takes the next action."""
    temperature: str = "temperature"
    """Role of the entropy coefficient (SAC's alpha)."""
    n: Length = 1
    """Number of rewards summed before the bootstrap (n-step return)."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    couples: Literal["row", "batch"] = field(default="batch", init=False)
    stamps = ("td_error",)

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.policy, self.temperature

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        policy, temperature = (role_model(ctx.models, role) for role in (self.policy, self.temperature))
        with torch.no_grad():
            ahead = batch.successors(self.n)
            action, logp = policy(ahead).rsample(ctx.noise(batch, "next"))
        asked = by_batch(ctx, self.role)(batch, ahead.put({"action": action}))
        value, after = (member_values(values.value()) for values in asked)
        with torch.no_grad():
            q = after.amin(1) - temperature(ahead).value() * logp.sum(1)
            y = td_target(batch, ahead, q, ctx.at(self.gamma), self.n)[:, None]
        batch.stamp("td_error", (value.detach() - y).abs().mean(1))
        loss = F.mse_loss(value, y.expand_as(value), reduction="none") / 2
        return loss.sum(1), {"value": value.detach().mean(1), "target": y[:, 0]}


def by_batch(ctx: Ctx, role: str) -> Any:
    """Returns a function (batches) -> the output of a role's model for each, normalised by the moments of all rows
    together. Raises ValueError for a model without batch renormalisation."""
    found = ability(role_model(ctx.models, role), "by_batch")
    if found is None:
        raise ValueError(f"the model of role {role!r} has no batch renormalisation: set its renorm = {{}}")
    return found

"""TD3+BC: trains a deterministic policy towards high critic values and recorded actions.

Axes: `B` rows, `K` positions of a decision (here 1), `A` action dimensions, `n` members of the critic.

Source: Fujimoto and Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Coefficient, check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.objectives.reparam import combine_members
from shuhari.objectives.td import member_values
from shuhari.ports import Ctx


@register("objective", "deterministic_bc")
@dataclass
class DeterministicBC:
    """TD3+BC's policy loss: a deterministic action of high value, near the recorded one.

    -scale · Q(s, pi(s)) + (pi(s) - a)², [B], scale = alpha / mean of |Q(s, pi(s))| over the optimiser batch, a number
    without gradient; the square is a mean over action dimensions (equations 4 and 5). Q is the first of the critic's
    members; with their minimum, and alpha = 1 / (beta · A), this is ReBRAC's loss divided by beta · A (Tarasov et al.
    2023, "Revisiting the Minimalist Approach to Offline Reinforcement Learning"). pi(s) is the action without noise.
    The gradient flows through the critic into the policy; the learner takes that of the part's own roles only. Info:
    `q`, `distance` (the square), `scale`.
    """

    alpha: Coefficient = 2.5
    """Weight of the normalised Q-value against the cloning error; 0 is pure behaviour cloning, 2.5 the paper's."""
    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
    critic: str = "critic"
    """Role of the critic that is maximised."""
    over: Literal["first", "min", "mean"] = "first"
    """Combination of the critic's members into one value: the `first` alone (TD3+BC), their `min` (ReBRAC) or their
    `mean`."""
    toward: str = "action"
    """Column [B, A] with the actions to stay near, scaled as the policy's: the recorded `action`, or another."""
    couples: Literal["row", "batch"] = field(default="batch", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "mode", live=True),)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.toward,)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.critic

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        action: Tensor = batch[self.needs[0]]
        critic: Any = role_model(ctx.models, self.critic)
        q = combine_members(member_values(critic(batch.put({"action": action})).value()), self.over)
        scale = ctx.at(self.alpha) / q.detach().abs().mean().clamp(min=1e-8)
        distance = (action - batch[self.toward].view_as(action)).square().mean(1)
        return distance - scale * q, {"q": q.detach(), "distance": distance.detach(), "scale": scale}

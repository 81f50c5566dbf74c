"""Policy losses that differentiate through the critic: reparameterised actions (SAC), deterministic ones (TD3).

Axes: `B` rows, `K` positions of a decision, `n` members of the critic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.objectives.joint_td import by_batch
from shuhari.objectives.td import member_values
from shuhari.ports import Ctx


@register("objective", "reparam")
@dataclass
class Reparam:
    """SAC's policy loss: a fresh reparameterised action of high value and high entropy.

    temperature · log pi(a|s) - Q(s, a), [B] (Haarnoja et al. 2018, equation 9). The gradient flows through the critic
    into the policy; the learner updates only the part's own roles. Stamps `fresh/log_prob` [B, K], which a later part
    of the same learner may read (the temperature's). Info: `q`, `fresh_log_prob`.
    """

    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
    critic: str = "critic"
    """Role of the critic that values the fresh actions."""
    temperature: str = "temperature"
    """Role of the entropy coefficient (SAC's alpha), a model of one positive number; it gets no gradient here."""
    over: Literal["min", "mean", "first"] = "min"
    """Combination of the critic's members into one value: `min` (SAC), `mean` (REDQ), or the `first` alone."""
    by_batch: bool = False
    """Normalise the policy by this batch, for one with `renorm` (CrossQ)."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ("fresh/log_prob",)

    def __post_init__(self) -> None:
        check(self)
        if self.by_batch:
            self.couples = "batch"

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.critic, self.temperature

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        models: Any = {r: role_model(ctx.models, r) for r in (self.role, self.critic, self.temperature)}
        policy = by_batch(ctx, self.role)(batch)[0] if self.by_batch else models[self.role](batch)
        action, logp = policy.rsample(ctx.noise(batch, "fresh"))
        q = _value_of(models[self.critic], batch, action, self.over)
        alpha = models[self.temperature](batch).value().detach()
        batch.stamp("fresh/log_prob", logp)
        logp = logp.sum(1)
        return alpha * logp - q, {"q": q.detach(), "fresh_log_prob": logp.detach()}


@register("objective", "deterministic")
@dataclass
class Deterministic:
    """The policy loss of DDPG and TD3: minus the value of the policy's noiseless action.

    -Q(s, pi(s)), [B]: the deterministic policy gradient (Silver et al. 2014, equation 9; Lillicrap et al. 2016,
    equation 6). The gradient flows through the critic into the policy; the learner updates only the part's own roles.
    Info: `q`.
    """

    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
    critic: str = "critic"
    """Role of the critic that values the actions."""
    over: Literal["min", "mean", "first"] = "first"
    """Combination of the critic's members into one value: the `first` alone (TD3), their `min` or their `mean`."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.critic

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        policy: Any = role_model(ctx.models, self.role)
        q = _value_of(role_model(ctx.models, self.critic), batch, policy(batch).mode(), self.over)
        return -q, {"q": q.detach()}


def _value_of(critic: Any, batch: Batch, action: Tensor, over: str) -> Tensor:
    """[B] the critic's value of these actions [B, A]."""
    return combine_members(member_values(critic(batch.put({"action": action})).value()), over)


def combine_members(q: Tensor, over: str) -> Tensor:
    """[B] one value of the members' [B, n]: the `first`, the `min` or the `mean`."""
    return q[:, 0] if over == "first" else q.min(1).values if over == "min" else q.mean(1)

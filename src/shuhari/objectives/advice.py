"""Distils advice: into the critic, whose values it raises, and into the policy, if the critic agrees.

Source: "Found-RL: foundation model-enhanced reinforcement learning for autonomous driving" (VMR and AWAG) and its
released code, which multiplies the mean of the squares by the mean of the mask; here, as in the paper, the mask applies
to each row. Left out: the bonus of a contrastive model (CLIP); where the advice comes from (transform `advise`).

Axes: `B` rows, `A` entries of an action, `n` members of the critic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Positive, check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.objectives.td import member_values
from shuhari.ports import Ctx


@register("objective", "advice_margin")
@dataclass
class AdviceMargin:
    """Raises the critic's value of the advised action to `margin` above that of the action taken (value margin
    regularisation).

    m (Q(s, a_v) - Q(s, a) - margin)² summed over the members of the critic, [B], Q(s, a) without gradient: m is column
    `advised` [B], a_v is `advice` [B, 1, A]. Info: `gap`, the difference of values where there is advice (0 elsewhere).
    """

    margin: float = 2.0
    """Distance above the value of the action taken to which the advised action's value is raised, in units of the
    return."""
    role: str = "critic"
    """Role of the critic that is trained, a name under `[models]`."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    couples: Literal["row", "batch"] = field(default="row", init=False)
    reads = ("advice", "advised", "action")
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        critic = role_model(ctx.models, self.role)
        with torch.no_grad():
            taken = member_values(critic(batch).value())
        gap = member_values(critic(_advised(batch)).value()) - taken  # [B, n]
        m = batch["advised"].float()
        return m * (gap - self.margin).square().sum(1), {"gap": m * gap.detach().mean(1)}


@register("objective", "advice_gain")
@dataclass
class AdviceGain:
    """Imitates advised actions that the critic values above the policy's own (advantage-weighted action guidance).

    -min(e^{gain / scale}, most) log pi(a_v|s), [B], averaged over the rows with advice (`advised`) and a gain above 0;
    0 for others, and if there are none. gain = min Q(s, a_v) - min Q(s, the policy's mode), without gradient. Actions
    are clipped to 0.001 within their bounds. Info: `kept`, whether a row counts.
    """

    scale: Positive = 2.0
    """Temperature of the weights exp(gain / scale), in units of the return; smaller favours the advice with the largest
    gain."""
    most: Positive = 20.0
    """Upper bound of the weight that one advised action can get."""
    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
    critic: str = "critic"
    """Role of the critic that compares advice and policy; it gets no gradient."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    couples: Literal["row", "batch"] = field(default="batch", init=False)
    reads = ("advice", "advised")
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.critic

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        critic, advised = role_model(ctx.models, self.critic), _advised(batch)
        dist: Any = role_model(ctx.models, self.role)(advised)
        with torch.no_grad():
            own = batch.put({"action": dist.mode()})
            gain = (member_values(critic(advised).value()).amin(1) - member_values(critic(own).value()).amin(1))
            kept = batch["advised"] & (gain > 0)
            weight = (gain / self.scale).exp().clamp(max=self.most)
        share = kept.float().mean().clamp(min=1 / len(batch))
        loss = torch.where(kept, -weight * dist.log_prob().sum(1), 0.0) / share
        return loss, {"kept": kept.float()}


def _advised(batch: Batch) -> Batch:
    """Returns the batch with the advice as actions, and their other columns unknown."""
    columns = {"action": batch["advice"].squeeze(1).clamp(-0.999, 0.999)}
    if "pre" in batch:
        columns["pre"] = torch.full_like(batch["pre"], torch.nan)
    return batch.put(columns)

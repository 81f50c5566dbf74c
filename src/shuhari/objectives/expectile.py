"""Implicit Q-learning: values of the best decisions that recorded data have, with no value of any other decision.

A state value is the upper expectile of what the recorded decisions are worth, decisions bootstrap from it, and the
policy imitates each decision by how much better than that value it is (`terms.nll` on the stream that is stamped here).

Axes: `B` rows, `K` positions of a decision, `n` members of an ensemble. A row is one transition, as in `td`.

Source: Kostrikov et al. 2022, "Offline Reinforcement Learning with Implicit Q-Learning" (IQL).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Bounds, Discount, Length, PositiveNumber, Ratio, check
from shuhari.data import Info, Number
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.objectives.td import first_position, member_values, td_target
from shuhari.ports import Ctx


@register("objective", "expectile")
@dataclass
class Expectile:
    """|tau - 1(Q < V)| (Q - V)², [B], Q the smallest of the members of `critic` (IQL, equation 5).

    tau in (0, 1): at 1/2 V is the mean of Q over the data's decisions, towards 1 their maximum. Roles: the state value
    that is trained, the critic (mostly a target). Stamps `weight/<stream>` [B, 1]: min(exp((Q - V) / temperature),
    most), by which a later part imitates (equation 7, whose beta is 1 / temperature); V is that before this update.
    temperature: in units of the value. Info: `value`, `advantage` (Q - V).
    """

    tau: Annotated[Number, Bounds(0, 1, open="both")] = 0.7
    temperature: PositiveNumber = 1.0
    most: Ratio = 100.0
    role: str = "value"
    critic: str = "target"
    stream: str = "awr"
    couples: Literal["row", "batch"] = field(default="row", init=False)

    def __post_init__(self) -> None:
        check(self)

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"weight/{self.stream}",)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return Need((self.role,), "value", live=True), Need((self.critic,), "value")

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        gap, value = advantage_of(batch, self.needs)
        stamp_worth(batch, self.stream, gap, ctx.at(self.temperature), ctx.at(self.most))
        tau = ctx.at(self.tau)
        side = tau + (1 - 2 * tau) * (gap < 0).to(gap.dtype)
        return side * gap.square(), {"value": value.detach(), "advantage": gap.detach()}


@register("objective", "value_td")
@dataclass
class ValueTD:
    """(Q(s, a) - y)² / 2 summed over the members of the critic, [B]; y = r + gamma · cont' · V(s') (IQL, equation 6).

    huber: errors beyond it count by their size, not their square (0: all are squared). Roles: the critic that is
    trained, the state value. n: rewards before the value, see `td_target`. Info: `value`, `target`; with a `bound`
    above 0, of the size of all values that there can be, `diverged`: the share of values beyond ten times it. Stamps
    `td_error` [B].
    """

    gamma: Discount = 0.99
    role: str = "critic"
    value: str = "value"
    n: Length = 1
    huber: AtLeast0 = 0.0
    bound: AtLeast0 = 0.0
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ("td_error",)

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "value", live=True),)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.value

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        q = member_values(batch[self.needs[0]])
        with torch.no_grad():
            ahead = batch.successors(self.n)
            state: Any = role_model(ctx.models, self.value)
            y = td_target(batch, ahead, first_position(state(ahead).value()), ctx.at(self.gamma), self.n)
        error = q - y[:, None]
        batch.stamp("td_error", error.detach().abs().mean(1))
        info = {"value": q.detach().mean(1), "target": y}
        if self.bound:
            info["diverged"] = (q.detach().abs() > 10 * self.bound).float().mean(1)
        if self.huber:
            return F.huber_loss(q, y[:, None].expand_as(q), reduction="none", delta=self.huber).sum(1), info
        return error.square().sum(1) / 2, info


def advantage_of(batch: Batch, needs: tuple[Need, ...]) -> tuple[Tensor, Tensor]:
    """([B] Q - V, [B] V) of the columns of a state value and of a critic, of whose members the smallest counts; Q has
    no gradient."""
    value, q = first_position(batch[needs[0]]), member_values(batch[needs[1]]).amin(1).detach()
    return q - value, value


def stamp_worth(batch: Batch, stream: str, gap: Tensor, temperature: float, most: float) -> None:
    """Stamp `weight/<stream>` [B, 1] = min(exp(gap / temperature), most) for gap [B]."""
    batch.stamp(f"weight/{stream}", (gap.detach() / temperature).exp().clamp(max=most)[:, None])

"""Implicit Q-learning: values of the best recorded decisions, without evaluating any other decision.

A state value is the upper expectile of the recorded decisions' values, decisions bootstrap from it, and the policy
imitates each decision by its advantage over that value (`terms.nll` on the stream stamped here).

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
    """IQL's state value: the upper expectile of the recorded actions' values.

    |tau - 1(Q < V)| (Q - V)², [B], Q the smallest of the members of `critic` (IQL, equation 5). Stamps
    `weight/<stream>` [B, 1]: min(exp((Q - V) / temperature), most), with which a later part imitates (equation 7, whose
    beta is 1 / temperature); V is that before this update. Info: `value`, `advantage` (Q - V).
    """

    tau: Annotated[Number, Bounds(0, 1, open="both")] = 0.7
    """Expectile in (0, 1): 1/2 is the mean of the recorded action values, towards 1 their maximum. IQL has 0.7 for
    locomotion, 0.9 for mazes."""
    temperature: PositiveNumber = 1.0
    """Temperature of the imitation weights exp(advantage / temperature), in units of the value: 1 / beta of the
    paper."""
    most: Ratio = 100.0
    """Upper bound of the imitation weights; inf for none."""
    role: str = "value"
    """Role of the state value that is trained, a name under `[models]`."""
    critic: str = "target"
    """Role of the critic whose smallest member is the action value, mostly a target network."""
    stream: str = "awr"
    """Stream that gets the imitation weights, which the policy's `nll` term names as its `stream`."""
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
    """IQL's critic loss: action values bootstrap from a state value, so no action outside the data is valued.

    (Q(s, a) - y)² / 2 summed over the members of the critic, [B]; y = r + gamma · cont' · V(s') (IQL, equation 6).
    Info: `value`, `target`, and with a `bound` `diverged`. Stamps `td_error` [B].
    """

    gamma: Discount = 0.99
    """Discount factor of future rewards, in [0, 1]."""
    role: str = "critic"
    """Role of the critic that is trained, a name under `[models]`."""
    value: str = "value"
    """Role of the state value that the target bootstraps from."""
    n: Length = 1
    """Number of rewards summed before the bootstrap (n-step return)."""
    huber: AtLeast0 = 0.0
    """Error from which the loss grows linearly instead of quadratically, in units of the value; 0 squares every
    error."""
    bound: AtLeast0 = 0.0
    """Size that no true value exceeds; above 0 it adds the info `diverged`, the share of values beyond ten times it.
    The loss does not depend on it."""
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
    """Returns ([B] Q - V, [B] V) from the columns of a state value and of a critic, with Q the smallest of its members,
    without gradient."""
    value, q = first_position(batch[needs[0]]), member_values(batch[needs[1]]).amin(1).detach()
    return q - value, value


def stamp_worth(batch: Batch, stream: str, gap: Tensor, temperature: float, most: float) -> None:
    """Stamps `weight/<stream>` [B, 1] = min(exp(gap / temperature), most) for gap [B]."""
    batch.stamp(f"weight/{stream}", (gap.detach() / temperature).exp().clamp(max=most)[:, None])

"""ReCOIL: values for imitation without rewards or a discriminator, from an expert's transitions and poor ones.

With a value V fitted to Q (`dual_value`), the dual for the chi-square divergence is, as a loss of Q,

    -share · E_expert[Q(s, a)] + 1/4 E_mixture[(gamma V(s') - Q(s, a))²]

The paper's third term, share · E_poor[V(s)], has no gradient in Q here. The terms' weights are share and 1/4. Axes: `B`
rows, `n` members of the critic. A row is one transition, as in `td`.

Source: Sikchi et al. 2024, "Dual RL: Unification and New Methods for Reinforcement and Imitation Learning" (ReCOIL).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Discount, check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need, role_model
from shuhari.objectives.td import first_position, member_values
from shuhari.ports import Ctx


@register("objective", "mixture_td")
@dataclass
class MixtureTD:
    """Squared temporal-difference error without a reward, on a mixture of expert and other transitions (ReCOIL).

    (Q(s, a) - gamma · cont' · V(s'))² summed over the members of the critic, [B]. Info: `value`.
    """

    gamma: Discount = 0.99
    """Discount factor of the value of the next state."""
    role: str = "critic"
    """Role of the critic Q(s, a) that is trained."""
    value: str = "value"
    """Role of the state value V(s') that is the target."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

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
            ahead = batch.successors()
            state: Any = role_model(ctx.models, self.value)
            worth = ahead["cont"] * (batch["child"] >= 0)
            value = first_position(state(ahead).value()).masked_fill(worth == 0, 0.0)
            y = ctx.at(self.gamma) * worth * value
        return (q - y[:, None]).square().sum(1), {"value": q.detach().mean(1)}


@register("objective", "expert_value")
@dataclass
class ExpertValue:
    """Raises the critic on the expert's transitions: -Q(s, a) summed over the members of the critic, [B] (ReCOIL).

    Its stream has only the expert's transitions.
    """

    role: str = "critic"
    """Role of the critic Q(s, a) that is trained."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "value", live=True),)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        return -member_values(batch[self.needs[0]]).sum(1), {}

"""Offline Reinforcement Learning with Implicit Q-Learning (Kostrikov et al. 2022), as a sketch on recorded data.

V is the upper expectile of Q over the actions of the data, Q bootstraps from V, and the policy imitates the data's
actions by how much better than V they are. Nothing outside of the data is ever asked for a value.

Axes: `B` rows, `K` = 1 decision a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Info
from shuhari.needs import Need
from shuhari.objectives.td import td_target
from shuhari.ports import Ctx


@dataclass
class Expectile:
    """|tau - 1(Q < V)| (Q - V)², [B] (equation 5); stamps `weight/awr`, exp((Q - V) * scale) up to 100 (equation 7)."""

    stamps = ("weight/awr",)
    tau: float = 0.7
    scale: float = 3.0
    couples: Literal["row", "batch"] = field(default="row", init=False)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return Need(("value",), "value", live=True), Need(("target",), "value")

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        v, q = (batch[n][:, 0] for n in self.needs)
        gap = q - v
        batch.stamp("weight/awr", (gap.detach() * self.scale).exp().clamp(max=100)[:, None])
        return (self.tau - (gap < 0).float()).abs() * gap.square(), {"advantage": gap.detach()}


@dataclass
class Bootstrap:
    """(Q - r - gamma V')² / 2, [B] (equation 6)."""

    gamma: float = 0.99
    roles: tuple[str, ...] = ("value",)
    couples: Literal["row", "batch"] = field(default="row", init=False)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need(("critic",), "value", live=True),)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        ahead = batch.successors()
        with torch.no_grad():
            y = td_target(batch, ahead, ctx.models["value"](ahead).value()[:, 0], self.gamma)
        return (batch[self.needs[0]][:, 0] - y).square() / 2, {"target": y}

"""Answers pushed above or below a demonstration's log-probability: CalibRL's guided term.

Source: "Controllable Exploration in Hybrid-Policy RLVR for Multi-Modal Reasoning" (CalibRL) and its released code. Left
out: where the demonstration's log-probability comes from (transform `beside`), and the policy gradient beside it.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from shuhari.batch import Batch
from shuhari.bounds import Share, check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("objective", "calibrated_imitation")
@dataclass
class Calibrated:
    """|A| LeakyReLU(-s (log pi - e)), [B, K]: s is 1 for an answer whose outcome `reward` is above `above`, else -1; A
    is column `advantage`, e column `expert`, what the policy before the update said at this place of the demonstration
    of the same prompt (0 beyond its end).

    slope: of LeakyReLU below 0, in [0, 1]: how much an answer is still moved once it lies on its side of the
    demonstration; at 1 the term is linear. Info: `passed`, which decisions do lie there.
    """

    slope: Share = 0.5
    above: float = 0.1
    role: str = "policy"
    reward: str = "reward"
    advantage: str = "advantage"
    expert: str = "expert"
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.reward, self.advantage, self.expert

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "log_prob", live=True),)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        right = (batch.outcome(self.reward) > self.above)[:, None]
        lacks = torch.where(right, 1.0, -1.0) * (batch[self.expert] - batch[self.needs[0]])
        loss = batch[self.advantage].abs() * F.leaky_relu(lacks, self.slope)
        return loss, {"passed": (lacks < 0).float().detach()}

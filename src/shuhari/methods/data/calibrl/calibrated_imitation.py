"""Pushes answers above or below a demonstration's log-probability: CalibRL's guided term.

Source: "Controllable Exploration in Hybrid-Policy RLVR for Multi-Modal Reasoning" (CalibRL) and its released code. Left
out: the source of the demonstration's log-probability (transform `expert_logp`), and the policy gradient added to it.

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
    """Pushes right answers above, and wrong ones below, the log-probability of the demonstration of the same prompt
    (CalibRL).

    The loss is |A| LeakyReLU(-s (log pi - e)), [B, K]: s is 1 for an answer whose outcome is above `above`, else -1; A
    is column `advantage`, e column `expert`, the log-probability by the policy before the update at this position of
    the demonstration (0 beyond its end). Info: `passed`, the decisions on their side of the demonstration.
    """

    slope: Share = 0.5
    """Slope of LeakyReLU below 0: how much an answer still moves once it is on its side of the demonstration; 1 makes
    the loss linear."""
    above: float = 0.1
    """Outcome above which an answer counts as right."""
    role: str = "policy"
    """Role of the policy that is trained."""
    reward: str = "reward"
    """Reward column that is the outcome of an answer; `reward` is the weighted sum that is trained."""
    advantage: str = "advantage"
    """Name of the column with the advantage, whose size weights each answer."""
    expert: str = "expert"
    """Name of the column with the demonstration's log-probabilities, as the transform `expert_logp` writes it."""
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

"""Policy gradients over a mixture of own samples and demonstrations: RL-PLUS.

Source: Dong et al. (2025), "RL-PLUS: Countering Capability Boundary Collapse of LLMs in Reinforcement Learning with
Hybrid-policy Optimization", arXiv 2508.00222, and its released code. Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Coefficient, check
from shuhari.data import Info
from shuhari.kernel.ratio import log_ratio
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.objectives.clip import LIMIT
from shuhari.ports import Ctx


@register("objective", "mixed_policy")
@dataclass
class MixedPolicy:
    """Policy gradient on own samples and demonstrations together, the latter with a bounded importance ratio (RL-PLUS).

    [B, K], with pi the policy, pi_old the policy before the update and A the column `advantage`:

        on own samples      -r A,                     r = pi / pi_old, not clipped;
        on demonstrations   -w A (1 - sg[pi])^gamma,  w = 2 pi / (pi_old + omega), omega = (pi_old + 1) / 2.

    w is the ratio to a mixture of pi_old and omega, an estimate of the demonstrator between pi_old and certainty. It
    lies in [0, 4], so that improbable tokens keep bounded weights; the last factor lowers probable ones. With pi_old =
    pi every token weighs less than under imitation. Info: `ratio` (r, or w).
    """

    gamma: Coefficient = 0.5
    """Exponent of (1 - pi) on demonstrations, which lowers tokens that are probable under the policy; 0 is off."""
    role: str = "policy"
    """Role of the policy that is trained."""
    demos: str = "demo"
    """Name of the column that is not 0 on demonstrations."""
    advantage: str = "advantage"
    """Name of the column with the advantage."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.advantage, self.demos

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return Need((self.role,), "log_prob", live=True), Need((self.role,), "log_prob")

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        new, old, a = batch[self.needs[0]], batch[self.needs[1]].exp(), batch[self.advantage]
        own = log_ratio(new, batch[self.needs[1]], batch).clamp(-LIMIT, LIMIT).exp()
        omega = (old + 1) / 2
        mixture = 2 * new.exp() / (old + omega)
        novel = (1 - new.detach().exp()).clamp(min=0) ** ctx.at(self.gamma)
        demo = (batch[self.demos] > 0)[:, None]
        ratio = torch.where(demo, mixture, own)
        return -ratio * a * torch.where(demo, novel, 1.0), {"ratio": ratio.detach()}

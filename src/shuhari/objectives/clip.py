"""Policy-gradient losses: the clipped surrogate, whose settings are PPO, GRPO, DAPO, GSPO, and plain REINFORCE.

Axes: `B` rows, `K` positions. What differs between these papers beside the settings here is the reduction of the term
(`decision`, `row`, `constant:N`) and where `advantage` comes from; neither is in this file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Info, Number, Ramp, nearest
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.ratio import LEVELS, log_ratio
from shuhari.registry import register

BEHAVIOURS = ("behaviour", "old")
LIMIT = 20.0  # of a log-ratio before exp: beyond it a float32 loss says nothing, and inf x 0 is NaN


@register("objective", "clip")
@dataclass
class Clip:
    """-min(r A, clamp(r, 1 - low, 1 + high) A), [B, K]; r the importance ratio at `level`, A column `advantage`.

    PPO and GRPO: low = high = 0.2 (Schulman et al. 2017, equation 7); DAPO: high = 0.28; GSPO: level = "sequence",
    low = 3e-4, high = 4e-4; low = high = inf: no clipping, the importance-weighted policy gradient. behaviour: the
    log-probabilities stored at sampling, or `old`: those of the policy scored once before the update. dual > 1 bounds
    the loss of a bad action by dual |A| (Ye et al. 2020, equation 5); 0 is off.
    Info: `clip_fraction` (decisions whose gradient the clip removes), `approx_kl` (k3 of behaviour from policy, per
    decision), `ratio`.
    """

    low: Number = 0.2
    high: Number = 0.2
    level: str = "decision"
    behaviour: str = "behaviour"
    role: str = "policy"
    dual: float = 0.0
    advantage: str = "advantage"

    def __post_init__(self) -> None:
        for name, value, known in (("level", self.level, LEVELS), ("behaviour", self.behaviour, BEHAVIOURS)):
            if value not in known:
                raise ValueError(f"clip: no {name} {value!r}; {nearest(value, known)}")
        for name, bound in (("low", self.low), ("high", self.high)):
            if not isinstance(bound, Ramp) and bound < 0:
                raise ValueError(f"clip: {name} is {bound}: expected 0 or more")
        if self.dual and self.dual <= 1:
            raise ValueError(f"clip: dual is {self.dual}: expected 0 (off) or a number > 1")

    @property
    def needs(self) -> tuple[Need, ...]:
        live = Need((self.role,), "log_prob", live=True)
        return (live, Need((self.role,), "log_prob")) if self.behaviour == "old" else (live,)

    @property
    def couples(self) -> Literal["row", "batch"]:
        return "batch" if self.level == "episode" else "row"  # an episode's ratio spans its rows

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        old = batch[self.needs[1]] if self.behaviour == "old" else batch["logp"]
        new, a = batch[self.needs[0]], batch[self.advantage]
        low, high = ctx.at(self.low), ctx.at(self.high)
        log = log_ratio(new, old, batch, self.level)
        r = log.clamp(-LIMIT, LIMIT).exp()
        free, held = -r * a, -r.clamp(1 - low, 1 + high) * a
        loss = torch.maximum(free, held)
        if self.dual:
            loss = torch.where(a < 0, torch.minimum(loss, -self.dual * a), loss)
        with torch.no_grad():
            step = log if self.level == "decision" else log_ratio(new, old, batch)
            info = {
                "clip_fraction": (loss != free).float(),
                "approx_kl": step.clamp(-LIMIT, LIMIT).expm1() - step,
                "ratio": r.detach(),
            }
        return loss, info


@register("objective", "reinforce")
@dataclass
class Reinforce:
    """-A log pi, [B, K]: the score-function gradient (Williams 1992), for rows that the present policy sampled."""

    role: str = "policy"
    advantage: str = "advantage"
    couples: Literal["row", "batch"] = field(default="row", init=False)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "log_prob", live=True),)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        return -batch[self.advantage] * batch[self.needs[0]], {}

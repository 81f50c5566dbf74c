"""Regression of sequence log-ratios on rewards: a policy's own log-ratio is the score that rewards are to be read from.

With s the log-ratio of a whole sample, A its column `advantage`, and c the centring over its group:

| method    | link     | centre        | over      | `advantage` with                | source                        |
|-----------|----------|---------------|-----------|---------------------------------|-------------------------------|
| Kimi k1.5 | square   | none          | old       | centre = "mean", scale = "none" | arXiv 2501.12599, sect. 2.3.2 |
| CoPG      | square   | leave-one-out | reference | any centre, scale = "none"      | arXiv 2406.19185              |
| PACS      | logistic | leave-one-out | old       | centre = "none", scale = "none" | arXiv 2509.02522              |

Left out: clips of the log-ratio; the scaling of PACS's score by its deviation over the group.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from shuhari.batch import Batch
from shuhari.bounds import Coefficient, check
from shuhari.data import Info
from shuhari.kernel.ratio import SampleLevel, log_ratio
from shuhari.kernel.reduce import group_mean
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx

Centre: TypeAlias = Literal["none", "mean", "leave-one-out"]


@register("objective", "log_ratio")
@dataclass
class LogRatio:
    """[B] a sample's loss; reduce it by `row` (`episode` where level is), so that no sample weighs by its length.

    link: `square`, beta / 2 c(s)^2 - c(A) c(s), which is c(A - beta s)^2 / (2 beta) less what has no gradient, and at
    beta = 0 the policy gradient; `logistic`, the cross-entropy of sigmoid(beta c(s)) and the label A, in [0, 1].
    centre: c takes off nothing, the `mean` of the row's group, or that of the others (`leave-one-out`; a group of two
    is then one pair, and its mean loss that of CoPG's pair; of n, 2 (n - 1) / n of it is the mean over all pairs).
    Only rows that the term learns from count. over: what s is the log-ratio over: `old`, the policy scored once before
    the update; `behaviour`, as sampled; `none`, nothing: s is log pi; any other name is a role. level: s is a sum over
    the decisions of the `row` or of the `episode`, or their mean (`sequence`). balance: in a group with labels on both
    sides of 1/2 each side weighs half, n / (2 n_side) a sample (logistic only). beta >= 0. score: the
    method of the distributions that s is made of.

    Info: `log_ratio` (s), `error` (of the square: |c(A - beta s)|; of the logistic: |A - sigmoid(beta c(s))|).
    ValueError for a label outside of [0, 1].
    """

    link: Literal["square", "logistic"] = "square"
    beta: Coefficient = 1.0
    centre: Centre = "none"
    over: str = "old"
    level: SampleLevel = "row"
    balance: bool = False
    role: str = "policy"
    advantage: str = "advantage"
    score: str = "log_prob"
    stamps = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.advantage,)

    @property
    def least_n(self) -> int:
        return 1 if self.centre == "none" else 2

    def __post_init__(self) -> None:
        check(self)
        if self.balance and self.link != "logistic":
            raise ValueError("log_ratio: balance weighs labels: it needs link = 'logistic'")

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        live = Need((self.role,), self.score, live=True)
        if self.over in ("behaviour", "none"):
            return (live,)
        return live, Need((self.role if self.over == "old" else self.over,), self.score)

    @property
    def couples(self) -> Literal["row", "batch"]:
        return "row" if self.centre == "none" and self.level != "episode" and not self.balance else "batch"

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        beta, new, mask = ctx.at(self.beta), batch[self.needs[0]], batch["mask"]
        known = batch[self.needs[1]] if len(self.needs) > 1 else batch["logp"]
        s = log_ratio(new, torch.zeros_like(new) if self.over == "none" else known, batch, self.level)[:, 0]
        a = (batch[self.advantage] * mask).sum(1) / mask.sum(1).clamp(min=1)  # the same at each decision
        score = self._center(batch, s)
        if self.link == "square":
            a = self._center(batch, a)
            loss, error = beta / 2 * score.square() - a * score, a - beta * score
        else:
            if bool(((a < 0) | (a > 1)).any()):
                raise ValueError(
                    f"log_ratio: labels of {float(a.min()):g} to {float(a.max()):g}: expected numbers in [0, 1]; "
                    "set collect.advantage = {centre = 'none', scale = 'none'}, with rewards of that range"
                )
            loss = F.binary_cross_entropy_with_logits(beta * score, a, reduction="none")
            loss, error = loss * self._balance(batch, a), a - torch.sigmoid(beta * score)
        return loss, {"log_ratio": s.detach(), "error": error.detach().abs()}

    def _center(self, batch: Batch, x: Tensor) -> Tensor:
        if self.centre == "none":
            return x
        mean, n = group_mean(batch, x)
        return (x - mean) * (n / (n - 1).clamp(min=1) if self.centre == "leave-one-out" else 1)

    def _balance(self, batch: Batch, label: Tensor) -> Tensor | float:
        if not self.balance:
            return 1.0
        share = group_mean(batch, (label > 0.5).float())[0]
        return torch.where((share > 0) & (share < 1), 0.5 / torch.where(label > 0.5, share, 1 - share), 1.0)

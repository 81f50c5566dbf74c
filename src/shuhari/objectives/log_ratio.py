"""Regression of sequence log-ratios on rewards: the policy's own log-ratio is fitted to the rewards.

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
    """Regression of a sample's log-ratio s on its reward (Kimi k1.5, CoPG) or label (PACS), [B].

    `square` is beta / 2 c(s)^2 - c(A) c(s), which is c(A - beta s)^2 / (2 beta) without the part that has no gradient;
    at beta = 0 it is the policy gradient. `logistic` is the cross-entropy of sigmoid(beta c(s)) and the label A, in [0,
    1]. c is the centring over the rows that the term learns from. With `leave-one-out` a group of two is one pair, with
    CoPG's mean loss; for n samples, 2 (n - 1) / n of it is the mean over all pairs. Balanced, a sample has weight n /
    (2 n_side). Reduce it by `row` (`episode` for that level), so that length does not change a sample's weight.

    Info: `log_ratio` (s), `error` (square: |c(A - beta s)|; logistic: |A - sigmoid(beta c(s))|). Raises ValueError for
    a label outside [0, 1].
    """

    link: Literal["square", "logistic"] = "square"
    """Loss of the log-ratio: `square` regresses on the advantage, `logistic` classifies labels in [0, 1]."""
    beta: Coefficient = 1.0
    """Scale of the log-ratio, 0 or more; larger keeps the policy nearer the reference, and 0 with `square` is the
    policy gradient."""
    centre: Centre = "none"
    """Baseline that is subtracted over the group: `none`, its `mean`, or the mean of the other samples
    (`leave-one-out`)."""
    over: str = "old"
    """Denominator of the log-ratio: `old` (the policy before the update), `behaviour` (as sampled), `none` (plain
    log-probability), or a role."""
    level: SampleLevel = "row"
    """Way a sample's log-ratio adds up: the sum over the `row` or the `episode`, or the mean over the row
    (`sequence`)."""
    balance: bool = False
    """Weigh labels above and below 1/2 half each in a group that has both; `logistic` only."""
    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
    advantage: str = "advantage"
    """Column with the targets of the regression: advantages, or labels."""
    score: str = "log_prob"
    """Method of the distributions that gives the log-probabilities; `log_prob` unless the model has only a bound."""
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

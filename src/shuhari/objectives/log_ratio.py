"""Regression of sequence log-ratios on rewards: a policy's own log-ratio is the score that rewards are to be read from.

With s the log-ratio of a whole sample, A its column `advantage`, and c the centring over its group:

| method    | link     | centre        | over      | `advantage` with                | source                        |
|-----------|----------|---------------|-----------|---------------------------------|-------------------------------|
| Kimi k1.5 | square   | none          | old       | centre = "mean", scale = "none" | arXiv 2501.12599, sect. 2.3.2 |
| CoPG      | square   | leave-one-out | reference | any centre, scale = "none"      | arXiv 2406.19185              |
| PACS      | logistic | leave-one-out | old       | centre = "none", scale = "none" | arXiv 2509.02522              |
| PRDP      | square   | leave-one-out | reference | centre = "none", scale = "none" | arXiv 2402.08714; `hold`      |

Left out: the scaling of PACS's score by its deviation over the group.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Annotated, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from shuhari.batch import Batch
from shuhari.bounds import Bounds, Coefficient, check
from shuhari.data import Info
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.ratio import SampleLevel, log_ratio
from shuhari.reduce import ends, group_mean, units
from shuhari.registry import register

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

    hold: proximal updates (PRDP: Deng et al. 2024, section 3.3), of the square between the samples of a group: with the
    log-ratio of each decision clipped to within `hold` of what it was before the update, the error of each pair is the
    larger of those with and without the clip, so that no step pays which goes further. inf: no clip.

    Info: `log_ratio` (s), `error` (of the square: |c(A - beta s)|; of the logistic: |A - sigmoid(beta c(s))|); with
    `hold` also `held`, the share of decisions whose log-ratio is clipped.
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
    hold: Annotated[float, Bounds(0, infinite=True)] = inf
    surrogate = True
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
        if self.hold < inf and not (self.link, self.centre, self.level) == ("square", "leave-one-out", "row"):
            raise ValueError("log_ratio: hold clips pairs: link = 'square', centre = 'leave-one-out', level = 'row'")

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        live = Need((self.role,), self.score, live=True)
        old = (Need((self.role,), self.score),) if self.hold < inf and self.over != "old" else ()
        if self.over in ("behaviour", "none"):
            return live, *old
        return live, Need((self.role if self.over == "old" else self.over,), self.score), *old

    @property
    def couples(self) -> Literal["row", "batch"]:
        return "row" if self.centre == "none" and self.level != "episode" and not self.balance else "batch"

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        beta, new, mask = ctx.at(self.beta), batch[self.needs[0]], batch["mask"]
        bare = self.over in ("behaviour", "none")
        known = batch["logp"] if bare else batch[self.needs[1]]
        known = torch.zeros_like(new) if self.over == "none" else known
        s = log_ratio(new, known, batch, self.level)[:, 0]
        a = (batch[self.advantage] * mask).sum(1) / mask.sum(1).clamp(min=1)  # the same at each decision
        if self.hold < inf:
            return self._proximal(batch, beta, known, s, a)
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

    def _proximal(self, batch: Batch, beta: float, known: Tensor, s: Tensor, a: Tensor) -> tuple[Tensor, Info]:
        """[B] of each row the mean over its pairs, scaled as without `hold`."""
        new, old = batch[self.needs[0]], batch[self.needs[-1]]
        near = new.detach().clamp(old - self.hold, old + self.hold)
        held = log_ratio(torch.where(near == new, new, near), known, batch)  # [B, K]; no gradient where clipped
        group = units(batch, "group")
        others = (group[:, None] == group) & ends(batch) & ~torch.eye(len(s), dtype=torch.bool)  # [B, B]
        n = others.sum(1) + 1

        def pairs(x: Tensor) -> Tensor:
            """(difference of A - beta x)² / (2 beta) of each pair, less what has no gradient."""
            apart = x[:, None] - x
            return beta / 2 * apart.square() - (a[:, None] - a) * apart

        loss = torch.where(others, torch.maximum(pairs(s), pairs(held.sum(1))), 0.0).sum(1)
        loss = loss * n / (2 * (n - 1).clamp(min=1).square())
        error = self._center(batch, (a - beta * s).detach())
        clipped = ((near != new) & batch["mask"]).sum(1) / batch["mask"].sum(1).clamp(min=1)
        return loss, {"log_ratio": s.detach(), "error": error.abs(), "held": clipped}

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

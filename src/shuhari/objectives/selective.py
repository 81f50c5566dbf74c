"""Another loss on a chosen few decisions: those that take most of the entropy away, or that are about to be forgotten.

| paper    | chosen                                                     | their loss                                  |
|----------|------------------------------------------------------------|---------------------------------------------|
| Clip-Cov | a random few of those whose covariance lies in a band      | 0                                           |
| KL-Cov   | the few of greatest covariance                             | - r A + beta abs(log pi - log mu)           |
| Lp-Reg   | the unlikeliest that a bad answer took, unless they are    | - r A + beta k3 of pi from a proxy: itself  |
|          | noise                                                      | before the update, without what was noise   |

The covariance of a decision is (log pi - mean)(A - mean); its mean over the decisions is, times the step size, how far
a step of policy gradient takes the entropy down. All choices are made over the decisions of the whole optimiser batch.
The other decisions keep the surrogate of `clip`.

Sources: Cui et al. (2025), "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv
2505.22617 (Clip-Cov, KL-Cov); Huang et al. (2025), "Low-probability Tokens Sustain Exploration in Reinforcement
Learning with Verifiable Reward", arXiv 2510.03222 (Lp-Reg); the bounds are those of the authors' scripts.

Axes: `B` rows, `K` positions, `N` decisions of a chunk, `V` alternatives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import log
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Bounds, Coefficient, Fraction, PositiveShare, Ratio, check
from shuhari.data import Info, Number
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.objectives.clip import LIMIT, Clip
from shuhari.objectives.divergence import estimate
from shuhari.ports import Ctx

NOISE = -1e4  # the logit of an alternative that is filtered out: as good as never, and finite


@register("objective", "clip_cov")
@dataclass
class ClipCov:
    """The clipped surrogate, 0 on a random `fraction` of the decisions, [B, K].

    fraction: in [0, 1], of all decisions, rounded down, but one at least; 0: none. Candidates are decisions that the
    bounds have not clipped already and whose covariance lies strictly between `least` and `most`; where there are
    fewer, all of them. low, high: bounds of the ratio, as for `clip`. Info: that of `clip`; `chosen`, `candidates`,
    as shares of the decisions, and `covariance`, its mean.
    """

    fraction: Fraction = 2e-4
    least: Annotated[float, Bounds(infinite=True)] = 1.0
    most: Annotated[float, Bounds(infinite=True)] = 5.0
    low: Ratio = 1.0
    high: Ratio = 1.0
    role: str = "policy"
    couples: Literal["row", "batch"] = field(default="batch", init=False)
    stamps = ()
    reads = ("advantage",)

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def base(self) -> Clip:
        return Clip(self.low, self.high, role=self.role)

    @property
    def needs(self) -> tuple[Need, ...]:
        return self.base.needs

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        loss, info, n = weigh_decisions(self.base, self.fraction, batch, ctx)
        cov = info["covariance"]
        band = batch["mask"] & (cov > self.least) & (cov < self.most) & (info["clip_fraction"] == 0)
        among = band.flatten().nonzero().squeeze(1)
        chosen = mark(among[torch.randperm(len(among), generator=ctx.rng("clip_cov"))[:n]], band)
        return torch.where(chosen, 0.0, loss), {**info, "chosen": chosen.float(), "candidates": band.float()}


@register("objective", "kl_cov")
@dataclass
class KlCov:
    """Importance-weighted policy gradient, with a penalty where the covariance is greatest, [B, K].

    fraction: in [0, 1], of all decisions, rounded down, but one at least; 0: none. beta: of abs(log pi - log mu), with
    mu the behaviour: its gradient is 0 where the policy is still mu, so it acts from the second step on a batch on.
    low, high: bounds of the ratio, as for `clip`; inf as in the paper. Info: that of `clip`, `chosen`, `covariance`.
    """

    fraction: Fraction = 2e-3
    beta: Coefficient = 1.0
    low: Ratio = float("inf")
    high: Ratio = float("inf")
    role: str = "policy"
    couples: Literal["row", "batch"] = field(default="batch", init=False)
    stamps = ()
    reads = ("advantage",)

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def base(self) -> Clip:
        return Clip(self.low, self.high, role=self.role)

    @property
    def needs(self) -> tuple[Need, ...]:
        return self.base.needs

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        loss, info, n = weigh_decisions(self.base, self.fraction, batch, ctx)
        chosen = choose_highest(info["covariance"], batch["mask"], n)
        penalised = loss + ctx.at(self.beta) * (batch[self.needs[0]] - batch["logp"]).abs()
        return torch.where(chosen, penalised, loss), {**info, "chosen": chosen.float()}


@register("objective", "lp_reg")
@dataclass
class LpReg:
    """The clipped surrogate, and where a bad answer took an unlikely decision, a pull back to the proxy, [B, K].

    Of the decisions with A < 0 the `fraction` of lowest log pi (rounded down; one or none: nobody) is looked at; those
    of them with log pi < log proxy lose the bounds and get `beta` k3(pi from proxy), gradient through log pi only. The
    proxy is the policy before the update, at the sampling temperature, without what is less probable than `kappa` times
    the most probable, renormalised (min-p); what is filtered out is noise, which nothing pulls back. With one step a
    batch, log proxy - log pi is minus the log of the mass that the filter keeps: a small pull.

    fraction in [0, 1], kappa in (0, 1]. low, high: bounds of the ratio, as for `clip`. Info: that of `clip`; `chosen`,
    as a share of the decisions, and `pull`, the mean of k3 times `chosen`.
    """

    fraction: Fraction = 0.01
    beta: Coefficient = 1.0
    kappa: PositiveShare = 0.02
    low: Ratio = 1.0
    high: Ratio = 9.0
    role: str = "policy"
    couples: Literal["row", "batch"] = field(default="batch", init=False)
    stamps = ()
    reads = ("advantage",)

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def base(self) -> Clip:
        return Clip(self.low, self.high, role=self.role)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (*self.base.needs, Need((self.role,), MinP(self.kappa)))

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        loss, info = self.base(batch, ctx)
        new, proxy = (batch[n] for n in self.needs)
        a, bad = batch["advantage"], batch["mask"] & (batch["advantage"] < 0)
        n = count_share(ctx.at(self.fraction), bad)
        chosen = choose_highest(-new, bad, n if n > 1 else 0) & (new.detach() < proxy)
        k3 = torch.where(chosen, estimate("k3", new, torch.where(chosen, proxy, new.detach())), 0.0)
        free = -(new - batch["logp"]).clamp(-LIMIT, LIMIT).exp() * a
        loss = torch.where(chosen, free + ctx.at(self.beta) * k3, loss)
        return loss, {**info, "chosen": chosen.float(), "pull": k3.detach()}


@dataclass(frozen=True)
class MinP:
    """A functional: [N] log-probability of the action under the distribution without what is less probable than
    `kappa` times the most probable alternative, renormalised; about NOISE for what is filtered out."""

    kappa: float

    def __call__(self, dists: tuple[Any, ...], action: Tensor, column: Callable[[str], Tensor]) -> Tensor:
        logits = dists[0].parameters().detach()  # [N, V]
        noise = logits < logits.amax(-1, keepdim=True) + log(self.kappa)
        return logits.masked_fill(noise, NOISE).log_softmax(-1).gather(-1, action[:, None].long()).squeeze(-1)


def weigh_decisions(base: Clip, fraction: Number, batch: Batch, ctx: Ctx) -> tuple[Tensor, dict[str, Any], int]:
    """What Clip-Cov and KL-Cov choose by: the surrogate [B, K], its info with the `covariance` [B, K], and how many
    decisions are to be chosen, one at least unless `fraction` is 0."""
    loss, info = base(batch, ctx)
    cov = covariance(batch[base.needs[0]], batch["advantage"], batch["mask"])
    return loss, {**info, "covariance": cov}, count_share(ctx.at(fraction), batch["mask"], at_least=1)


def covariance(new: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """[B, K] (log pi - mean)(A - mean), means over the decisions; 0 elsewhere. Without gradient."""
    x, a = new.detach()[mask], advantage[mask]
    return torch.zeros_like(advantage).masked_scatter(mask, (x - x.mean()) * (a - a.mean()))


def count_share(fraction: float, mask: Tensor, at_least: int = 0) -> int:
    """How many decisions `fraction` of those in `mask` are, rounded down; `at_least` so many, unless it is 0."""
    return max(at_least, int(fraction * int(mask.sum()))) if fraction else 0


def choose_highest(score: Tensor, among: Tensor, n: int) -> Tensor:
    """[B, K] bool: the n decisions `among` [B, K] of the highest score."""
    x = score.detach().masked_fill(~among, -torch.inf).flatten()
    return mark(x.topk(min(n, int(among.sum()))).indices, among)


def mark(places: Tensor, like: Tensor) -> Tensor:
    """[B, K] bool: the decisions at `places` [n] of the flattened `like` [B, K]."""
    flat = torch.zeros(like.numel(), dtype=torch.bool, device=like.device)
    return flat.index_fill(0, places, True).view_as(like)

"""Another loss on a few chosen decisions: those that reduce the entropy most, or that are about to be forgotten.

| paper    | chosen                                                     | their loss                                  |
|----------|------------------------------------------------------------|---------------------------------------------|
| Clip-Cov | a random few of those whose covariance lies in a band      | 0                                           |
| KL-Cov   | the few of greatest covariance                             | - r A + beta abs(log pi - log mu)           |
| Lp-Reg   | the unlikeliest that a bad answer took, unless they are    | - r A + beta k3 of pi from a proxy: itself  |
|          | noise                                                      | before the update, without what was noise   |

The covariance of a decision is (log pi - mean)(A - mean); its mean over the decisions, times the step size, is how much
a policy-gradient step lowers the entropy. All choices are made over the decisions of the whole optimiser batch. The
other decisions keep the surrogate of `clip`.

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

NOISE = -1e4  # logit of a filtered alternative: practically never sampled, but finite


@register("objective", "clip_cov")
@dataclass
class ClipCov:
    """Clip-Cov: the clipped surrogate, without gradient from a few random decisions whose covariance lies in a band,
    [B, K].

    Candidates are decisions that the bounds have not already clipped and whose covariance lies strictly between `least`
    and `most`; if there are fewer than wanted, all of them are chosen. Info: that of `clip`; `chosen`, `candidates`, as
    shares of the decisions, and `covariance`, its mean.
    """

    fraction: Fraction = 2e-4
    """Share of all decisions that are left out, in [0, 1], rounded down but at least one; 0 leaves out none."""
    least: Annotated[float, Bounds(infinite=True)] = 1.0
    """Lower end of the candidates' covariance band; -inf for none."""
    most: Annotated[float, Bounds(infinite=True)] = 5.0
    """Upper end of the candidates' covariance band; inf for none."""
    low: Ratio = 1.0
    """Clip range below 1 for the importance ratio; inf clips nothing below, nor does 1."""
    high: Ratio = 1.0
    """Clip range above 1 for the importance ratio; inf clips nothing above."""
    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
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
    """KL-Cov: importance-weighted policy gradient, with a KL penalty on the few decisions of greatest covariance, [B,
    K].

    The penalty is beta abs(log pi - log mu), mu the behaviour: its gradient is 0 while the policy is still mu, so it
    acts from the second step on each batch. Info: that of `clip`, `chosen`, `covariance`.
    """

    fraction: Fraction = 2e-3
    """Share of all decisions that are penalised, in [0, 1], rounded down but at least one; 0 penalises none."""
    beta: Coefficient = 1.0
    """Coefficient of the KL penalty on the chosen decisions."""
    low: Ratio = float("inf")
    """Clip range below 1 for the importance ratio; inf, as in the paper, clips nothing below."""
    high: Ratio = float("inf")
    """Clip range above 1 for the importance ratio; inf, as in the paper, clips nothing above."""
    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
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
    """Lp-Reg: the clipped surrogate, with a pull back to unlikely decisions of bad answers, [B, K].

    Considers the `fraction` of decisions with A < 0 that have the lowest log pi. Those with log pi < log proxy lose the
    bounds and get `beta` k3(pi from proxy), with gradient through log pi only. The proxy is the policy before the
    update, at the sampling temperature, without alternatives less probable than `kappa` times the most probable,
    renormalised (min-p). Filtered alternatives are noise and not pulled back. With one step per batch, log proxy - log
    pi is minus the log of the mass that the filter keeps: a small pull.

    Info: that of `clip`; `chosen`, as a share of the decisions, and `pull`, the mean of k3 times `chosen`.
    """

    fraction: Fraction = 0.01
    """Share of the decisions with a negative advantage that are considered, the least likely ones, in [0, 1]; rounded
    down, and off if that is one or none."""
    beta: Coefficient = 1.0
    """Coefficient of the KL pull towards the proxy."""
    kappa: PositiveShare = 0.02
    """Min-p threshold of the proxy in (0, 1]: tokens less probable than this times the likeliest count as noise."""
    low: Ratio = 1.0
    """Clip range below 1 for the importance ratio; inf clips nothing below, nor does 1."""
    high: Ratio = 9.0
    """Clip range above 1 for the importance ratio; inf clips nothing above."""
    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
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
    """A functional: [N] log-probability of the action under the distribution without alternatives less probable than
    `kappa` times the most probable, renormalised; about NOISE for filtered ones."""

    kappa: float
    """Share of the likeliest alternative's probability below which an alternative is filtered out, in (0, 1]."""

    def __call__(self, dists: tuple[Any, ...], action: Tensor, column: Callable[[str], Tensor]) -> Tensor:
        logits = dists[0].parameters().detach()  # [N, V]
        noise = logits < logits.amax(-1, keepdim=True) + log(self.kappa)
        return logits.masked_fill(noise, NOISE).log_softmax(-1).gather(-1, action[:, None].long()).squeeze(-1)


def weigh_decisions(base: Clip, fraction: Number, batch: Batch, ctx: Ctx) -> tuple[Tensor, dict[str, Any], int]:
    """Returns the inputs to the choice of Clip-Cov and KL-Cov: the surrogate [B, K], its info with the `covariance` [B,
    K], and the number of decisions to choose, at least one unless `fraction` is 0."""
    loss, info = base(batch, ctx)
    cov = covariance(batch[base.needs[0]], batch["advantage"], batch["mask"])
    return loss, {**info, "covariance": cov}, count_share(ctx.at(fraction), batch["mask"], at_least=1)


def covariance(new: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """Returns [B, K] (log pi - mean)(A - mean), means over the decisions; 0 elsewhere. Without gradient."""
    x, a = new.detach()[mask], advantage[mask]
    return torch.zeros_like(advantage).masked_scatter(mask, (x - x.mean()) * (a - a.mean()))


def count_share(fraction: float, mask: Tensor, at_least: int = 0) -> int:
    """Returns `fraction` of the number of decisions in `mask`, rounded down; at least `at_least`, unless `fraction` is
    0."""
    return max(at_least, int(fraction * int(mask.sum()))) if fraction else 0


def choose_highest(score: Tensor, among: Tensor, n: int) -> Tensor:
    """Returns [B, K] bool: the n decisions of highest score `among` [B, K]."""
    x = score.detach().masked_fill(~among, -torch.inf).flatten()
    return mark(x.topk(min(n, int(among.sum()))).indices, among)


def mark(places: Tensor, like: Tensor) -> Tensor:
    """Returns [B, K] bool: the decisions at `places` [n] of the flattened `like` [B, K]."""
    flat = torch.zeros(like.numel(), dtype=torch.bool, device=like.device)
    return flat.index_fill(0, places, True).view_as(like)

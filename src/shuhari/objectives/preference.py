"""Preference losses over links: which of two samples is better (DPO and its kin), or whether one is good (KTO).

Axes: `B` rows, `K` positions, `P` links. A link's row stands for its whole sample, and s [P] is what the sample scores:
the log-ratio of policy over reference (or the log-probability alone), summed or averaged over its decisions. Of pairs,
h = beta (s of the better - s of the worse) - margin is the logit that the better one wins, and `FORMS` has the losses
of h:

| name   | settings                                                            | source                              |
|--------|---------------------------------------------------------------------|-------------------------------------|
| DPO    | form = "sigmoid"                                                    | Rafailov et al. 2023, equation 7    |
| cDPO   | form = "sigmoid", label_smoothing > 0                               | Mitchell 2023                       |
| IPO    | form = "ipo", level = "sequence" (the paper's sum: level = "row")   | Azar et al. 2023, equation 17       |
| SLiC   | form = "hinge" (the paper's own: reference_free)                    | Zhao et al. 2023                    |
| SimPO  | reference_free, level = "sequence", margin > 0                      | Meng et al. 2024                    |

Links come from data (buffer `preferences`) or from graded groups (transforms `pairs`, `labels`). Columns of theirs
(`LINKED`) are read where they are there: what a data set knows of each pair. Left out: a supervised term beside (that
is `nll`), divergences other than reverse KL, robust DPO (its loss is not one of soft labels), per-token weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from shuhari.batch import Batch
from shuhari.bounds import Bounds, PositiveNumber, check
from shuhari.data import Info, Number, nearest
from shuhari.kernel.columns import LINKED
from shuhari.kernel.ratio import SampleLevel, log_ratio
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx

FORMS: dict[str, Callable[[Tensor, float], Tensor]] = {  # (h [P], beta) -> loss [P]
    "sigmoid": lambda h, beta: -F.logsigmoid(h),
    "hinge": lambda h, beta: F.relu(1 - h),
    "ipo": lambda h, beta: ((h - 0.5) / beta).square(),  # (s_w - s_l - 1 / (2 beta))^2
}


@register("objective", "preference")
@dataclass
class Preference:
    """DPO and its kin: the loss of pairs of a better and a worse sample, [P], over the `links` [P, 2] of (better,
    worse) rows.

    The table of the module has each `form` with its paper. Columns [P] of the links are read where they are there;
    where a pair has none (NaN), it counts as one without. `margin`: what h is reduced by, beside the setting (a reward
    model's by how much better the chosen one is: Touvron et al. 2023, "Llama 2", equation 2). `label` p in [0, 1]: how
    likely the chosen one is the better, so that the loss is p loss(h) + (1 - p) loss(-h), cDPO pair by pair;
    label_smoothing then takes p to (1 - e) p + e (1 - p). `weight`, 0 or more: the loss is their weighted mean over
    pairs.

    Info: `chosen` and `rejected` (the implicit rewards, beta s), `margin` (the one less the other), `accuracy` (the
    share where it is above 0, or of pairs with a label below 1/2 below it). KeyError without the links, ValueError for
    a label or a weight out of range.
    """

    beta: PositiveNumber = 0.1
    """Strength of the implicit KL penalty to the reference (DPO's beta), above 0; larger keeps the policy nearer the
    reference."""
    form: Literal["sigmoid", "hinge", "ipo"] = "sigmoid"
    """Loss of the margin between the two samples: `sigmoid` (DPO, SimPO), `hinge` (SLiC) or `ipo`."""
    label_smoothing: Annotated[float, Bounds(0, 0.5, open="high")] = 0.0
    """Assumed share of pairs labelled the wrong way round, in [0, 0.5) (cDPO); 0 trusts every label."""
    margin: Number = 0.0
    """Amount by which the better sample's scaled score must exceed the worse one's (SimPO's gamma); 0 is DPO."""
    level: SampleLevel = "row"
    """Way a sample's score adds up: the sum over the `row`, the mean over it (`sequence`: IPO, SimPO), or the sum over
    an `episode` of several turns."""
    reference_free: bool = False
    """Score by the plain log-probability, so that no reference model is needed (SimPO)."""
    role: str = "policy"
    """Role of the model that is trained, a name under `[models]`."""
    reference: str = "reference"
    """Role of the reference model; not read if `reference_free`."""
    links: str = "pairs"
    """Name of the links that hold the pairs, as buffer `preferences` or transform `pairs` makes them."""
    score: str = "log_prob"
    """Method of the distributions that is compared: `log_prob`, a bound such as `elbo`, or `value` for a reward
    model."""
    couples: Literal["row", "batch"] = field(default="batch", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        live = Need((self.role,), self.score, live=True)
        return (live,) if self.reference_free else (live, Need((self.reference,), self.score))

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        beta, (index, columns) = ctx.at(self.beta), read_links(batch, self.links)
        better, worse = (beta * scores(batch, self.needs, self.level)[index]).unbind(1)
        h = better - worse - ctx.at(self.margin)
        if "margin" in columns:
            h = h - columns["margin"].nan_to_num(0.0)
        loss, right, e = FORMS[self.form](h, beta), better > worse, self.label_smoothing
        if "label" in columns:
            told = columns["label"].nan_to_num(1.0)
            sure = (1 - e) * told + e * (1 - told)
            loss = sure * loss + (1 - sure) * FORMS[self.form](-h, beta)
            right = torch.where(told < 0.5, worse > better, right)
        elif e:
            loss = (1 - e) * loss + e * FORMS[self.form](-h, beta)
        info = {"accuracy": right.float(), "margin": better - worse, "chosen": better, "rejected": worse}
        return loss, {k: v.detach() for k, v in info.items()}


@register("objective", "kto")
@dataclass
class Kto:
    """KTO: learns from samples that are each labelled good or bad (Ethayarajh et al. 2024, equation 8), [P].

    Over the `links` [P, 1] of rows with a column `label` (1: good) it is lambda (1 - sigmoid(beta (s - z0))) of a good
    sample, lambda (1 - sigmoid(beta (z0 - s))) of a bad one; lambda is `desirable` or `undesirable`. The reference
    point z0 = max(0, the mean of s), constant to the gradient, stands for KL(policy||reference). The mean is over the
    links `mismatched` [M, 1] where the batch has them: prompts with the answers to others, the paper's estimate, which
    recorded answers need (buffer `preferences`). Else it is over the labelled rows: what the policy has just sampled
    estimates the KL itself, without bias but for the clip at 0, and costs no forward.

    Info: `kl` (z0), `chosen` and `rejected` (beta s of the good and of the bad). KeyError without the links.
    """

    beta: PositiveNumber = 0.1
    """Strength of the implicit KL penalty to the reference, above 0; larger keeps the policy nearer the reference."""
    desirable: PositiveNumber = 1.0
    """Weight of good samples; the paper keeps weight times number of good to that of bad between 1 and 4/3."""
    undesirable: PositiveNumber = 1.0
    """Weight of bad samples; raise it, or lower `desirable`, if good samples are many more."""
    level: SampleLevel = "row"
    """Way a sample's score adds up: the sum over the `row`, the mean over it (`sequence`), or the sum over an `episode`
    of several turns."""
    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
    reference: str = "reference"
    """Role of the reference model, a name under `[models]`."""
    links: str = "labels"
    """Name of the links that hold the labelled samples, as buffer `preferences` or transform `labels` makes them."""
    mismatched: str = "mismatched"
    """Name of the links that pair prompts with the answers to others, for the KL estimate; without them the labelled
    rows serve."""
    score: str = "log_prob"
    """Method of the distributions that is compared: `log_prob`, or a bound such as `elbo`."""
    couples: Literal["row", "batch"] = field(default="batch", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return Need((self.role,), self.score, live=True), Need((self.reference,), self.score)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        beta, (index, columns) = ctx.at(self.beta), read_links(batch, self.links)
        s, good = scores(batch, self.needs, self.level), columns["label"] > 0.5
        point = s[batch.links.get(self.mismatched, (index, {}))[0].flatten()].detach()
        z0 = point.mean().clamp(min=0) if len(point) else s.new_zeros(())
        s = s[index[:, 0]]
        weight = torch.where(good, ctx.at(self.desirable), ctx.at(self.undesirable))
        loss = weight * (1 - torch.sigmoid(beta * torch.where(good, s - z0, z0 - s)))
        reward = beta * s.detach()
        return loss, {"kl": z0, "chosen": reward[good], "rejected": reward[~good]}


def read_links(batch: Batch, name: str) -> tuple[Tensor, dict[str, Tensor]]:
    """The links [P, m] and their columns [P]; KeyError, with where links come from, where the batch has none, and
    ValueError for a column out of its range (`LINKED`)."""
    if name not in batch.links:
        raise KeyError(
            f"no links {name!r} in the batch; {nearest(name, batch.links)}: they come from [transform.pairs] or "
            "[transform.labels] (graded groups), or from buffer.use = 'preferences' (data)"
        )
    index, columns = batch.links[name]
    for column, (least, most) in LINKED.items():
        x = columns.get(column)
        if x is not None and bool(((x < least) | (x > most)).any()):
            odd = x[(x < least) | (x > most)][0]
            expected = f"expected a number in [{least:g}, {most:g}]" if most < torch.inf else "expected 0 or more"
            raise ValueError(f"links {name!r}: a {column} is {float(odd):g}: {expected}")
    return index, columns


def scores(batch: Batch, needs: tuple[Need, ...], level: str) -> Tensor:
    """[B] s: log pi, less the log-probability of the reference where there is a second need, at `level`."""
    new = batch[needs[0]]
    old = batch[needs[1]] if len(needs) > 1 else torch.zeros_like(new)
    return log_ratio(new, old, batch, level)[:, 0]

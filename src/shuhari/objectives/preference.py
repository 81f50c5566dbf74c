"""Preference losses over links: which of two samples is better (DPO and its variants), or whether one is good (KTO).

Axes: `B` rows, `K` positions, `P` links. A link's row represents its whole sample, and s [P] is the sample's score: the
log-ratio of policy over reference (or the log-probability alone), summed or averaged over its decisions. For pairs, h =
beta (s of the better - s of the worse) - margin is the logit that the better one wins.

| name         | settings                                                            | source                          |
|--------------|---------------------------------------------------------------------|---------------------------------|
| DPO          | form = "sigmoid"                                                    | Rafailov et al. 2023, eq. 7     |
| cDPO         | form = "sigmoid", label_smoothing > 0                               | Mitchell 2023                   |
| robust DPO   | form = "robust", label_smoothing > 0                                | Chowdhury et al. 2024, eq. 12   |
| f-DPO        | divergence = "forward_kl", "js" or "alpha"                          | Wang et al. 2023, theorem 1     |
| LD-DPO       | tail < 1                                                            | Liu et al. 2024, eq. 9          |
| IPO          | form = "ipo", level = "sequence" (the paper's sum: level = "row")   | Azar et al. 2023, eq. 17        |
| SLiC         | form = "hinge" (the paper's own: reference_free)                    | Zhao et al. 2023                |
| EXO          | form = "exo", label_smoothing > 0                                   | Ji et al. 2024, eq. 16          |
| NCA          | form = "nca"                                                        | Chen et al. 2024                |
| BCO          | form = "bco"                                                        | Jung et al. 2024                |
| SPPO         | form = "sppo"                                                       | Wu et al. 2024, eq. 4.7         |
| AOT          | form = "aot", "aot_unpaired"                                        | Melnyk et al. 2024              |
| APO          | form = "apo_zero", "apo_down"                                       | D'Oosterlinck et al. 2024       |
| DiscoPOP     | form = "discopop"                                                   | Lu et al. 2024, eq. 5           |
| SimPO        | reference_free, level = "sequence", margin > 0                      | Meng et al. 2024                |
| AlphaPO      | the same, divergence = "alpha", with their alpha as 1 - alpha       | Gupta et al. 2025               |
| CPO          | reference_free, and a second term with form = "nll"                 | Xu et al. 2024, eq. 3 and 5     |
| ORPO         | form = "odds", level = "sequence", and a second term of form "nll"  | Hong et al. 2024, eq. 6 and 7   |
| INPO         | form = "ipo", references = the first policy and the last round's    | Zhang et al. 2024, eq. 6        |
| RPO, MPO     | several terms, each with a weight; form = "nll" is their imitation  | Pang et al. 2024; Wang 2024     |

Links come from data (buffer `preferences`) or from graded groups (transforms `pairs`, `labels`). Their columns
(`LINKED`), which a data set may have for each pair, are used if present. Left out: per-token weights (WPO).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Bounds, PositiveNumber, Share, check
from shuhari.data import EMPTY, Info, Number, nearest
from shuhari.kernel.columns import LINKED
from shuhari.kernel.ratio import SampleLevel, log_ratio
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.objectives.pair_losses import OF_DIFFERENCE, OF_EACH, SMOOTHED, Pairs, change_scores, sort_margins
from shuhari.ports import Ctx

Form = Literal[
    "sigmoid", "hinge", "ipo", "robust", "exo", "discopop", "nca", "bco", "sppo", "apo_zero", "apo_down", "aot",
    "aot_unpaired", "odds", "nll"
]  # fmt: skip
WITHOUT_REFERENCE = ("odds", "nll")
SORTED = ("aot", "aot_unpaired")


@register("objective", "preference")
@dataclass
class Preference:
    """DPO and its variants: the loss of pairs of a better and a worse sample, [P], over the `links` [P, 2] of (better,
    worse) rows.

    The module's table lists each `form` with its paper. Columns [P] of the links are used if present; NaN counts as
    missing. `margin`: subtracted from h, in addition to the setting (a reward model's margin: Touvron et al. 2023,
    "Llama 2", equation 2). `label` p in [0, 1]: the probability that the chosen one is better, so that the loss is p
    times that of the pair and 1 - p times that of the pair the other way round, cDPO per pair; label_smoothing then
    maps p to (1 - e) p + e (1 - p). `weight`, 0 or more: the loss is the weighted mean over pairs.

    Info: `chosen` and `rejected` (the implicit rewards, beta s), `margin` (their difference), `accuracy` (the share of
    pairs where it is above 0, or below 0 if the label is below 1/2); nothing of `nll`. Raises KeyError without the
    links, ValueError for a label or a weight out of range, for settings that the form does not use, and for columns
    that it cannot use.
    """

    beta: PositiveNumber = 0.1
    """Strength of the implicit KL penalty to the reference (DPO's beta), above 0; larger keeps the policy nearer the
    reference."""
    form: Form = "sigmoid"
    """Loss of a pair: `sigmoid` (DPO, SimPO), `ipo`, `hinge` (SLiC), `odds` (ORPO), ...; the module's table lists all.
    `nll` imitates the better sample."""
    label_smoothing: Annotated[float, Bounds(0, 0.5, open="high")] = 0.0
    """Assumed share of wrongly labelled pairs, in [0, 0.5) (cDPO); 0 trusts every label. `exo` and `robust` need one;
    EXO's authors use 0.001."""
    margin: Number = 0.0
    """Amount by which the better sample's scaled score must exceed the worse one's (SimPO's gamma); 0 is DPO."""
    level: SampleLevel = "row"
    """Way a sample's score adds up: the sum over the `row`, the mean over it (`sequence`: IPO, SimPO, ORPO), or the sum
    over an `episode` of several turns."""
    reference_free: bool = False
    """Score by the plain log-probability, so that no reference model is needed (SimPO, CPO)."""
    divergence: Literal["reverse_kl", "forward_kl", "js", "alpha"] = "reverse_kl"
    """Divergence to the reference whose optimum the score belongs to (f-DPO); DPO has `reverse_kl`."""
    alpha: float = 0.5
    """Order of the divergence `alpha`; 1 is the reverse KL."""
    tail: Share = 1.0
    """Weight of tokens behind the length of the other sample of the pair (LD-DPO's alpha); 1 counts all alike."""
    tau: Annotated[float, Bounds(0, open="low")] = 0.05
    """Temperature of the mixture of `discopop`."""
    role: str = "policy"
    """Role of the model that is trained, a name under `[models]`."""
    reference: str = "reference"
    """Role of the reference model; unused if `reference_free`, and by the forms `odds` and `nll`."""
    references: Mapping[str, Share] = EMPTY
    """Roles whose log-probabilities, averaged by these shares, are the reference's, such as `{reference = 0.3,
    previous = 0.7}` (INPO); empty takes `reference` alone."""
    links: str = "pairs"
    """Name of the links that hold the pairs, as buffer `preferences` or transform `pairs` makes them."""
    score: str = "log_prob"
    """Method of the distributions that is compared: `log_prob`, a bound such as `elbo`, or `value` for a reward
    model."""
    couples: Literal["row", "batch"] = field(default="batch", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)
        form, e = self.form, self.label_smoothing
        if e and form not in SMOOTHED:
            hint = nearest(form, SMOOTHED)
            raise ValueError(f"label_smoothing is {e}: form {form!r} has none; expected 0, or another form; {hint}")
        if not e and form in ("exo", "robust"):
            raise ValueError(f"label_smoothing is 0: form {form!r} expects a number above 0, such as 0.001")
        if self.divergence != "reverse_kl" and form not in OF_DIFFERENCE:
            raise ValueError(f"divergence is {self.divergence!r}: form {form!r} expects 'reverse_kl'")
        if form == "odds" and self.level != "sequence":
            raise ValueError(f"level is {self.level!r}: form 'odds' expects 'sequence', the mean log-probability")
        if form == "aot" and self.reference_free:
            raise ValueError("reference_free is true: form 'aot' compares with a reference; expected false")
        if self.references and abs(sum(self.references.values()) - 1) > 1e-6:
            raise ValueError(f"references are {dict(self.references)}: expected shares that sum to 1")
        if self.references and form == "aot":
            raise ValueError("references are given: form 'aot' compares with one reference; expected none")
        if self.tail != 1 and self.level != "row":
            raise ValueError(f"tail is {self.tail:g}: expected level = 'row', got {self.level!r}")

    @property
    def compares(self) -> bool:
        """Whether scores are ratios to a reference."""
        return not (self.reference_free or self.form in WITHOUT_REFERENCE)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        live = Need((self.role,), self.score, live=True)
        others = (self.references or (self.reference,)) if self.compares else ()
        return (live, *(Need((role,), self.score) for role in others))

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        beta, (index, columns) = ctx.at(self.beta), read_links(batch, self.links)
        if self.form == "nll":
            return self._imitate(batch, index[:, 0]), {}
        self._check_columns(columns)
        s = self._score(batch, index)
        better, worse = (beta * change_scores(s, self.divergence, self.alpha)).unbind(1)
        label = columns["label"].nan_to_num(1.0) if "label" in columns else None
        h = better - worse - ctx.at(self.margin)
        if "margin" in columns:
            h = h - columns["margin"].nan_to_num(0.0)
        if self.form in SORTED:
            h = beta * self._sort(batch, index, s)
        pairs = Pairs(better, worse, h, beta, self.label_smoothing, self.tau)
        loss, right = self._compare(pairs, label), better > worse
        if label is not None:
            right = torch.where(label < 0.5, worse > better, right)
        info = {"accuracy": right.float(), "margin": better - worse, "chosen": better, "rejected": worse}
        return loss, {k: v.detach() for k, v in info.items()}

    def _score(self, batch: Batch, index: Tensor) -> Tensor:
        """Returns s [P, 2] of both samples."""
        new = batch[self.needs[0]]
        old = self._blend(batch) if self.compares else torch.zeros_like(new)
        if self.tail == 1:
            return log_ratio(new, old, batch, self.level)[:, 0][index]
        mask = batch["mask"]
        n = mask.sum(1)[index].amin(1)  # [P] decisions that both have
        place = mask.cumsum(1)[index]  # [P, 2, K] number of a decision, from 1
        d = log_ratio(new, old, batch)[index]
        return torch.where(place <= n[:, None, None], d, self.tail * d).sum(2)

    def _blend(self, batch: Batch) -> Tensor:
        """Returns the log-probabilities [B, K] of the reference, or of several by their shares."""
        if not self.references:
            return batch[self.needs[1]]
        shares = self.references.values()
        return torch.stack([x * batch[need] for x, need in zip(shares, self.needs[1:], strict=True)]).sum(0)

    def _imitate(self, batch: Batch, better: Tensor) -> Tensor:
        """Returns [P] such that its mean is the mean loss of a token of the better samples."""
        total = -scores(batch, self.needs, "row")[better]
        n = batch["mask"].sum(1)[better]
        return total * len(n) / n.sum().clamp(min=1)

    def _sort(self, batch: Batch, index: Tensor, s: Tensor) -> Tensor:
        """Returns differences [P] of sorted margins (`aot`) or of sorted scores (`aot_unpaired`)."""
        if self.form == "aot_unpaired":
            return s[:, 0].sort().values - s[:, 1].sort().values
        policy, reference = (scores(batch, (need,), self.level)[index] for need in self.needs)
        return sort_margins(policy, reference)

    def _compare(self, pairs: Pairs, label: Tensor | None) -> Tensor:
        """Returns the loss [P], with labels and their smoothing."""
        e = self.label_smoothing
        if self.form in OF_EACH:
            loss = OF_EACH[self.form](pairs)
            return loss if label is None else label * loss + (1 - label) * OF_EACH[self.form](pairs.swap())
        of = OF_DIFFERENCE["sigmoid" if self.form in SORTED else self.form]
        if self.form in ("exo", "robust") or not (e or label is not None):
            return of(pairs)
        sure = 1 - e if label is None else (1 - e) * label + e * (1 - label)
        return sure * of(pairs) + (1 - sure) * of(pairs.swap())

    def _check_columns(self, columns: dict[str, Tensor]) -> None:
        whole = self.form in OF_EACH or self.form in SORTED or self.form == "odds"
        for name, refused in (("margin", whole), ("label", self.form in (*SORTED, "exo", "robust"))):
            if name in columns and refused and bool((~columns[name].isnan()).any()):
                raise ValueError(f"links {self.links!r} have a column {name!r}, which form {self.form!r} cannot use")
        if whole and self.margin != 0:
            raise ValueError(f"margin is {self.margin}: form {self.form!r} expects 0")


@register("objective", "kto")
@dataclass
class Kto:
    """KTO: learns from samples that are each labelled good or bad (Ethayarajh et al. 2024, equation 8), [P].

    Over the `links` [P, 1] of rows with a column `label` (1: good) it is lambda (1 - sigmoid(beta (s - z0))) for a good
    sample, lambda (1 - sigmoid(beta (z0 - s))) for a bad one; lambda is `desirable` or `undesirable`. The reference
    point z0 = max(0, the mean of s), without gradient, estimates KL(policy||reference). The mean is over the links
    `mismatched` [M, 1] if the batch has them: prompts with the answers to others, the paper's estimate, which recorded
    answers need (buffer `preferences`). Otherwise it is over the labelled rows: samples of the current policy estimate
    the KL directly, unbiased except for the clip at 0, and cost no forward.

    Info: `kl` (z0), `chosen` and `rejected` (beta s of the good and the bad samples). Raises KeyError without the
    links.
    """

    beta: PositiveNumber = 0.1
    """Strength of the implicit KL penalty to the reference, above 0; larger keeps the policy nearer the reference."""
    desirable: PositiveNumber = 1.0
    """Weight of good samples; the paper keeps the ratio of weight times number, good to bad, between 1 and 4/3."""
    undesirable: PositiveNumber = 1.0
    """Weight of bad samples; raise it, or lower `desirable`, if there are many more good samples."""
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
    rows are used."""
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
    """Returns the links [P, m] and their columns [P]. Raises KeyError, with where links come from, if the batch has
    none, and ValueError for a column out of its range (`LINKED`)."""
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
    """Returns s [B]: log pi, less the reference's log-probability if there is a second need, at `level`."""
    new = batch[needs[0]]
    old = batch[needs[1]] if len(needs) > 1 else torch.zeros_like(new)
    return log_ratio(new, old, batch, level)[:, 0]

"""The safety of an answer up to each token: safe parts are imitated, elsewhere the policy is held at an aligned one.

Source: "Shape it Up! Restoring LLM Safety during Finetuning" (STAR-DSS, arXiv 2505.17196). Its guard is a large model
that labels a beginning; here the guard is two language models, one of them trained on unsafe answers, and Bayes' rule
gives the safety of a beginning.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Length, ProperShare, check
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import weights_on


@register("transform", "safety_weights")
@dataclass
class Safety:
    """Weights each token of a demonstration by the probability that the answer is safe so far: safe parts are imitated,
    elsewhere the policy is held (STAR-DSS).

    Multiplies `weight/<stream>` by S and stamps `weight/<held>` with 1 - S times the old weight, [B, K] each. A term on
    `stream` imitates (`nll`), one on `held` holds the policy (`divergence`). S of a beginning is

        sigmoid(logit(prior) + log p_safe - log p_unsafe)

    both summed over its decisions, from the roles `safe` and `unsafe`. A decision of weight 0 would not count in a
    mean, so S is kept within 1e-6 of 0 and 1 if `by` is "chunk" or "answer". Rows are whole answers: raises ValueError
    for one that continues in another.
    """

    by: Literal["chunk", "answer", "reject", "nothing"] = "chunk"
    """Text whose safety weights a token: each "chunk" up to its end, or the whole "answer"; "reject" drops answers
    below 1/2, "nothing" imitates all."""
    size: Length = 5
    """Number of tokens of a chunk; the last one may be shorter."""
    prior: ProperShare = 0.5
    """Assumed prior share of safe answers."""
    safe: str = "reference"
    """Role of the aligned model, which gives safe answers their probability."""
    unsafe: str = "guard"
    """Role of the guard, a model trained on unsafe answers."""
    stream: str = "ce"
    """Name of the weights of the loss that imitates."""
    held: str = "held"
    """Name of the weights of the loss that holds the policy at the aligned model."""

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return tuple(Need((role,), "log_prob") for role in (self.safe, self.unsafe))

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"weight/{self.stream}",)

    @property
    def stamps(self) -> tuple[str, ...]:
        return f"weight/{self.stream}", f"weight/{self.held}"

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        if bool((batch["child"] != -1).any()):
            raise ValueError("safety: rows go on in other rows: expected one row an answer")
        safe, unsafe = (batch[n] for n in self.needs)
        mask, weight = batch["mask"], weights_on(batch, self.stream)
        odds = log(self.prior / (1 - self.prior)) + ((safe - unsafe) * mask).double().cumsum(1)
        chance = odds.sigmoid().float()  # [B, K] of the beginning up to here
        whole = chance[:, -1:].expand_as(chance)
        if self.by in ("reject", "nothing"):
            kept = weight * (whole >= 0.5) if self.by == "reject" else weight
            return batch.put({f"weight/{self.stream}": kept, f"weight/{self.held}": torch.zeros_like(kept)})
        s = whole if self.by == "answer" else at_chunk_ends(chance, mask, self.size)
        s = s.clamp(1e-6, 1 - 1e-6)
        return batch.put({f"weight/{self.stream}": weight * s, f"weight/{self.held}": weight * (1 - s)})


def at_chunk_ends(x: Tensor, mask: Tensor, size: int) -> Tensor:
    """Returns [B, K] x at the last decision of each position's chunk of `size` decisions, or of the row."""
    place = torch.arange(x.shape[1]).expand_as(x)
    number = mask.long().cumsum(1) - mask.long()  # of each decision, from 0
    ending = mask & ((number % size == size - 1) | (number == mask.sum(1, keepdim=True) - 1))
    later = torch.where(ending, place, x.shape[1] - 1).flip(1).cummin(1).values.flip(1)
    return x.gather(1, later)

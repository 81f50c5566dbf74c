"""Bellman residuals on the logits of a language model: the policy itself is the Q-function.

A text is an episode in a tree with deterministic steps: the next state is the next decision of the same row, and its
value is read from the same forward, one decision later. A row is a whole episode; no discounting.

Axes: `B` rows, `K` positions, `N` decisions of a chunk, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import PositiveNumber, check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx

FORBIDDEN = -1e29  # a logit below is of an id that could not be taken: it is no action and counts in no mean


@register("objective", "uniform_q")
@dataclass
class UniformQ:
    """ROVER: fits the policy's log-ratios to the values of a uniformly random policy (He et al. 2025, arXiv
    2509.24981).

    (Q - sg[A + V'])², [B, K], with Q = scale x (log pi - log pi_old), pi_old the policy before the update. A is the
    column `advantage`: the centred reward of the whole answer, on each of its decisions. V' is the mean of Q over all
    ids at the next decision, 0 after the last one; ids of probability 0 (padding, outside top-p) are no actions. At
    first Q and V' are 0, and the gradient is -2 scale A grad log pi; the backup matters in later minibatches. That mean
    is -scale KL(uniform || pi) up to a constant: values of a tree cannot be represented exactly. Info: `q`, `next_q`.
    Raises ValueError if a row continues in another.
    """

    scale: PositiveNumber = 1.0
    """Units of reward per nat of log-ratio (the paper's rho), above 0; larger moves the policy less for the same
    reward."""
    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
    advantage: str = "advantage"
    """Column with the centred reward of the answer, not divided by its deviation."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.advantage,)

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """log pi and its mean over all ids: current, and before the update."""
        names: tuple[str | Callable[..., Tensor], ...] = ("log_prob", mean_log_prob)
        return tuple(
            Need((self.role,), name, live=live)
            for live in (True, False)
            for name in names
        )

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        new, mean, old, old_mean = (batch[n] for n in self.needs)
        scale = ctx.at(self.scale)
        q = scale * (new - old)
        next_q = next_values(scale * (mean - old_mean).detach(), batch)
        return (q - (batch[self.advantage] + next_q)).square(), {"q": q.detach(), "next_q": next_q}


def mean_log_prob(dists: tuple[Any, ...], action: Tensor, column: Callable[[str], Tensor]) -> Tensor:
    """A functional: [N] the mean of log pi(a|s) over the ids that could be taken."""
    logits = dists[0].parameters()
    taken = logits > FORBIDDEN
    return torch.where(taken, logits.log_softmax(-1), 0.0).sum(-1) / taken.sum(-1)


def next_values(value: Tensor, batch: Batch) -> Tensor:
    """Returns [B, K] the value [B, K] of the row's next decision; 0 after the last one. Raises ValueError if rows
    continue in others, since their ends are not ends of episodes."""
    if bool((batch["child"] != -1).any()):
        raise ValueError("a Bellman residual over rows that go on in other rows: expected one row an episode")
    mask, K = batch["mask"], batch.width
    place = torch.where(mask, torch.arange(K), K)
    later = torch.cat([place[:, 1:], place.new_full((len(place), 1), K)], 1)
    later = later.flip(1).cummin(1).values.flip(1)  # of the first decision after each position, K for none
    padded = torch.cat([value, value.new_zeros(len(value), 1)], 1)
    return torch.where(mask, padded.gather(1, later), 0.0)

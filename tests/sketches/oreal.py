"""OREAL: Exploring the Limit of Outcome Reward for Learning Mathematical Reasoning (2025), catalogue 88.

A token reward model, role `credit`, is fitted to outcomes while it weighs the policy's tokens. In a recipe:

    collect   : mixed, advantage (leave-one-out, unscaled): before anything is chosen
    transform : credit weights (below)
    credit    : fit outcome on stream `credit`, reduce = row
    policy    : after = 10; `clip` of `present` on `pos`, 0.5 x it on `neg`, 0.01 x divergence on `rl` (what was chosen)

On negatives eta |A| w log(pi / pi_old) has the gradient of REINFORCE with the advantage A w, since A < 0 there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from shuhari.batch import Batch
from shuhari.data import Info
from shuhari.models.causal import CausalValue
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.reduce import units


@dataclass
class TokenReward(CausalValue):
    """w(s_t): the value head *after* each token (a critic's is before it)."""

    def __call__(self, batch: Batch) -> Any:
        one = torch.zeros(len(batch), 1)
        after = torch.cat([one.bool(), batch["mask"]], 1)  # what is asked about is the position behind each decision
        longer = {"action": torch.cat([batch["action"], one.to(batch["action"].dtype)], 1), "mask": after}
        before = super().__call__(batch.put({**longer, "length": batch["length"] + 1}))
        return SimpleNamespace(value=lambda: before.value()[:, 1:])


@dataclass
class CreditWeights:
    """One right and one wrong sample a group; A omega, with omega+ = max(2 sigma(w) - 1, 0) on the right one and
    omega- = max(1 - 2 sigma(w), 0) on the wrong one. Streams: pos, neg, rl = both, credit = all."""

    needs: tuple[Need, ...] = field(default=(Need(("credit",), "value"),), init=False)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        right, mixed = batch.outcome() > 0, (batch.weight("rl") != 0).any(1)
        pick = one_each(batch, right, ctx.rng("pick")) & mixed
        p = 2 * batch[self.needs[0]].sigmoid() - 1
        omega = torch.where(right[:, None], p, -p).clamp(min=0)
        streams = {"pos": pick & right, "neg": pick & ~right, "rl": pick, "credit": mixed}
        columns = {f"weight/{s}": rows[:, None] * batch["mask"].float() for s, rows in streams.items()}
        return batch.put({"advantage": batch["advantage"] * omega, **columns})


def one_each(batch: Batch, right: Tensor, rng: torch.Generator) -> Tensor:
    """[B] bool: one row of each (group, right), at random."""
    unit = 2 * units(batch, "group") + right
    order = torch.randperm(len(batch), generator=rng)
    first = torch.full((int(unit.max()) + 1,), -1).scatter_(0, unit[order], order)  # the last one written stays
    return torch.zeros(len(batch), dtype=torch.bool).index_fill_(0, first[first >= 0], True)


@dataclass
class FitOutcome:
    """Binary cross-entropy of sigmoid(mean over t of w(s_t)) and the outcome, [B]."""

    needs: tuple[Need, ...] = field(default=(Need(("credit",), "value", live=True),), init=False)
    couples: Literal["row", "batch"] = field(default="row", init=False)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        w, mask = batch[self.needs[0]], batch["mask"]
        mean = (w * mask).sum(1) / mask.sum(1)
        return F.binary_cross_entropy_with_logits(mean, batch.outcome(), reduction="none"), {}

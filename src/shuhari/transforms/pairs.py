"""Preferences from graded groups: which sample of a group beats which (links `pairs`), which is good (`labels`).

A batch that already has such links, from a file of preferences, is passed on unchanged. Axes: `B` rows, `P` links.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Length, check
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import ends, units
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import find_carried, zero_ungraded, zero_weight


@register("transform", "pairs")
@dataclass
class Pairs:
    """Preference pairs from graded groups: the best sample of a group with its worst, the next best with the next
    worst.

    Makes the links "pairs" [P, 2] of (better, worse); a sample is in one pair at most, and equal outcomes give none. A
    sample in no pair has weight 0 on `stream`: under `[transform]` it is just not learnt from, under `[collect]` a
    group without a pair is also replaced by a new one. Ungraded samples are in no pair and are charged. A sample of
    several rows is linked by its last one.
    """

    per_group: Length = 1
    """Largest number of pairs from one group."""
    reward: str = "reward"
    """Column whose outcomes are compared."""
    stream: str = "rl"
    """Stream on which samples in no pair get weight 0."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    stamps = ("links/pairs",)
    least_n = 2

    @property
    def reads(self) -> tuple[str, ...]:
        return self.reward, f"weight/{self.stream}"

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        if "pairs" in batch.links:
            return batch
        batch, outcome, rows = _graded_samples(batch, ctx, self.reward, self.stream)
        index = rows[pair_best_with_worst(outcome[rows], units(batch, "group")[rows], self.per_group)]
        paired = torch.isin(batch["episode"], batch["episode"][index])
        return zero_weight(batch, ~paired, self.stream).link("pairs", index)


@register("transform", "labels")
@dataclass
class Labels:
    """Good and bad labels from rewards, for KTO.

    Makes the links "labels" [P, 1] of samples with a column `label`: 1.0 if the outcome is above `threshold`, else 0.0.
    Ungraded samples are not linked, have weight 0 on `stream`, and are charged.
    """

    threshold: float = 0.5
    """Outcome above which a sample is labelled good."""
    reward: str = "reward"
    """Column whose outcome is compared with the threshold."""
    stream: str = "rl"
    """Stream on which ungraded samples get weight 0."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    stamps = ("links/labels",)

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.reward, f"weight/{self.stream}"

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        if "labels" in batch.links:
            return batch
        batch, outcome, rows = _graded_samples(batch, ctx, self.reward, self.stream)
        return batch.link("labels", rows[:, None], {"label": (outcome[rows] > self.threshold).float()})


def _graded_samples(batch: Batch, ctx: Ctx, reward: str, stream: str) -> tuple[Batch, Tensor, Tensor]:
    """Returns the batch with weight 0 for ungraded samples, outcomes [B], and the last row of each sample that
    counts."""
    if reward not in batch and batch.links:
        kind, other = next(iter(batch.links)), "pairs" if "labels" in batch.links else "labels"
        raise ValueError(
            f"the data are {kind}, and this loss wants {other}: pairs serve as labels with buffer.links = 'labels', "
            "labels never as pairs"
        )
    outcome = batch.outcome(reward)
    batch = zero_ungraded(batch, outcome.isnan() & find_usable(batch), ctx, stream)
    return batch, outcome, (ends(batch) & find_carried(batch, stream) & ~outcome.isnan()).nonzero().squeeze(1)


def pair_best_with_worst(x: Tensor, unit: Tensor, most: int) -> Tensor:
    """Returns [P, 2] positions (better, worse) in x [B]: within each `unit` [B] the i-th best with the i-th worst, i <
    most, while the first is larger. Of equal ones the earlier counts as better."""
    order = x.argsort(descending=True, stable=True)
    order = order[unit[order].argsort(stable=True)]  # unit after unit, each from best to worst
    u, n = unit[order], torch.bincount(unit)
    first = (n.cumsum(0) - n)[u]
    place = torch.arange(len(order)) - first
    other = order[first + n[u] - 1 - place]
    keep = (place < most) & (x[order] > x[other])
    return torch.stack([order[keep], other[keep]], 1)

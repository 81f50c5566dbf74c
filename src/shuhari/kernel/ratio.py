"""Importance ratios: every one of the library."""

from __future__ import annotations

from math import isnan
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import nearest

LEVELS = ("decision", "row", "segment", "sequence", "episode")
SampleLevel: TypeAlias = Literal["row", "sequence", "episode"]  # at which a whole sample has one number


def log_ratio(new: Tensor, old: Tensor, batch: Batch, level: str = "decision") -> Tensor:
    """Return [B, K] log of new over old probability; 0 where nothing was decided.

    Levels: `decision`; `row` and `episode` (the sum over the mask of the row, of the whole chain), `segment` (the sum
    over a turn), `sequence` (the mean over the mask; GSPO). All but `decision` and `episode` hold the same number at
    every position they cover, with the gradient through all of them. Raises ValueError if `old` is NaN on a decision:
    behaviour is unknown there (foreign text, demonstrations), and no ratio exists; and if `level` is `episode` and rows
    of the same episode and role, which decide, are not in this batch.
    """
    mask = batch["mask"]
    if new.dim() == 3:
        raise ValueError(f"log-probabilities {list(new.shape)}: a ratio is of [B, K], not of an ensemble")
    difference = new - old
    d = difference if batch.full else torch.where(mask, difference, 0.0)
    if isnan(float(d.detach().sum())) and bool(d.isnan().any()):  # the sum is NaN of infinities, too
        if bool((old.isnan() & mask).any()):
            n = int((old.isnan() & mask).any(1).sum())
            raise ValueError(
                f"an importance ratio over {n} rows whose behaviour log-probability is unknown (NaN): "
                "use the policy's own score before the update (behaviour = 'old') or another stream for these rows"
            )
        n = int((new.isnan() & mask).any(1).sum())
        raise ValueError(f"the policy's log-probability is NaN in {n} of {len(mask)} rows: expected finite weights")
    if level == "decision":
        return d
    if level in ("row", "sequence"):
        s = d.sum(1, keepdim=True)
        if level == "sequence":
            s = s / mask.sum(1, keepdim=True).clamp(min=1)
        return s.expand_as(d)
    if level == "segment":
        segment = batch["segment"].clamp(min=0)
        s = d.new_zeros(len(d), int(segment.max()) + 1).scatter_add(1, segment, d)
        return s.gather(1, segment)
    if level == "episode":
        _whole_episodes(batch)
        _, inverse = torch.unique(batch["episode"], return_inverse=True)
        s = d.new_zeros(int(inverse.max()) + 1).index_add(0, inverse, d.sum(1))
        return s[inverse][:, None].expand_as(d)
    raise ValueError(f"no level {level!r} of ratios; {nearest(level, LEVELS)}")


def _whole_episodes(batch: Batch) -> None:
    if batch.rows is None:
        return
    whole = Batch(batch.whole)
    there = torch.zeros(len(whole), dtype=torch.bool).index_fill_(0, batch.rows, True)
    pair = torch.stack([whole["episode"], whole["role"]], 1)
    _, unit = torch.unique(pair, dim=0, return_inverse=True)
    missing = torch.isin(unit, unit[batch.rows]) & ~there & whole.decides
    if bool(missing.any()):
        raise ValueError(
            f"a ratio at level 'episode' without {int(missing.sum())} rows of its episodes (of weight 0 on the stream, "
            "or in another minibatch): weigh whole episodes, set unit = 'episode' or 'group', or take level 'row'"
        )

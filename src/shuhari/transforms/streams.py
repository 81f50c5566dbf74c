"""Which rows carry a stream, and how a transform removes the weight of some: helpers of this package.

Filters never delete rows: they set `weight/<stream>` to 0, so pointers, groups and links stay whole. Axes: `B` rows,
`K` positions.
"""

from __future__ import annotations

from torch import Tensor

from shuhari.batch import Batch
from shuhari.kernel.pack import find_usable
from shuhari.ports import Ctx


def find_carried(batch: Batch, stream: str = "rl") -> Tensor:
    """Returns [B] bool: rows that decide, did not end in an error, and have weight on `stream`. A batch without weights
    carries every stream in full."""
    rows = batch.decides & find_usable(batch)
    if f"weight/{stream}" in batch:
        return rows & (batch.weight(stream) != 0).any(1)
    if batch.stream not in (None, stream):
        return rows & False
    return rows


def weights_on(batch: Batch, stream: str = "rl") -> Tensor:
    """Returns [B, K] the weight of each decision on a stream; without weights, 1 on the rows carried."""
    if f"weight/{stream}" in batch:
        return batch.weight(stream).float()
    return (find_carried(batch, stream)[:, None] * batch["mask"]).float()


def zero_weight(batch: Batch, rows: Tensor, stream: str = "rl") -> Batch:
    """Returns `batch` with weight 0 on `stream` for the rows [B] bool."""
    return batch.put({f"weight/{stream}": weights_on(batch, stream).masked_fill(rows[:, None], 0.0)})


def zero_ungraded(batch: Batch, rows: Tensor, ctx: Ctx, stream: str = "rl") -> Batch:
    """Returns `batch` with weight 0 for the ungraded rows [B] bool; those that carried the stream are charged as
    `ungraded`."""
    lost = rows & find_carried(batch, stream)
    if not bool(lost.any()):
        return batch
    ctx.charge("ungraded", int(lost.sum()))
    return zero_weight(batch, rows, stream)


def whiten(x: Tensor, where: Tensor, eps: float = 1e-8) -> Tensor:
    """Returns [B, K] x minus its mean over its standard deviation (unbiased) plus `eps`, both over `where` [B, K]; 0
    elsewhere. Fewer than two numbers are left unscaled."""
    some = x[where]
    if some.numel() < 2:
        return x * where
    return ((x - some.mean()) / (some.std() + eps)).masked_fill(~where, 0.0)

"""An optimiser batch cut into shares, one a process, and a share as plain data: its rows, the rows beside them in their
episodes (losses may look ahead and back), and what losses may read of the run's context.

Axes: `B` rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.distributed.messages import read_count, write_count


def cut_shares(batch: Batch, n: int, *, packed: bool) -> list[Tensor]:
    """Return the rows of n shares, each ascending, of about as many tokens each and at least one row. Packed,
    neighbours of a group stay together, as they begin with the same text; padded, rows of similar length do."""
    length = batch["length"]
    order = batch["group"].argsort(stable=True) if packed else length.argsort(descending=True, stable=True)
    total = length[order].clamp(min=1).cumsum(0)
    B, bounds = len(batch), [0]
    for i in range(1, n):
        at = int(torch.searchsorted(total, int(total[-1]) * i // n, right=True))
        bounds.append(min(max(at, bounds[-1] + 1), B - (n - i)))
    return [order[a:b].sort().values for a, b in zip(bounds, [*bounds[1:], B], strict=True)]


def pack_share(share: Batch) -> dict[str, Any]:
    """Convert a view of some rows to a tree of plain data; `unpack_share` is the inverse."""
    rows = torch.arange(len(share)) if share.rows is None else share.rows
    base = Batch(share.whole, None, None, share.arena, None, share.stream)
    needed = _find_beside(base, rows)
    return {"beside": base.take(needed), "rows": torch.searchsorted(needed, rows), "own": dict(share.own)}


def unpack_share(tree: Mapping[str, Any]) -> Batch:
    beside: Batch = tree["beside"]
    return Batch(beside.whole, tree["rows"], dict(tree["own"]), beside.arena, None, beside.stream)


def _find_beside(base: Batch, rows: Tensor) -> Tensor:
    """Return the rows of the groups and chains that contain `rows`, ascending."""
    group = base["group"]
    found = torch.isin(group, group[rows].unique())
    new = found.nonzero().squeeze(1)
    while len(new):
        linked = torch.cat([base["child"][new], base["parent"][new]])
        linked = linked[linked >= 0].unique()
        new = linked[~found[linked]]
        found[new] = True
    return found.nonzero().squeeze(1)


def pack_now(ctx: Any) -> dict[str, Any]:
    """Return the position of a run as plain data; `take_now` sets it in another context."""
    return {"ctx": {"step": ctx.step, "version": ctx.version, "within": ctx.within}, "count": write_count(ctx.count)}


def take_now(to: Any, ctx: Mapping[str, Any], count: Sequence[Any]) -> None:
    to.step, to.version, to.within = ctx["step"], ctx["version"], ctx["within"]
    to.count = read_count(count)

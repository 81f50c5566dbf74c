"""Joining batches: rollouts, replay and demonstrations mix into one.

Axes: `B` rows, `k` positions of one part, `P` links.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import POINTERS, Batch
from shuhari.kernel.columns import DERIVED, missing_value


def cat(batches: Sequence[Batch]) -> Batch:
    """Join batches, padded to the widest, so that rollouts, replay and demonstrations mix.

    A missing weight is 0, a missing temperature 1, any other missing column NaN (numbers), -1 (integers) or False, in
    links too; a scored column that a part lacks is left out, to be scored again."""
    batches = [b for b in batches if len(b)] or list(batches[:1])
    if len(batches) == 1:
        return batches[0]
    if len({b.stream for b in batches}) > 1 or any(
        n.startswith("weight/")
        for b in batches
        for n in b.names()
    ):
        batches = [b.put({f"weight/{b.stream}": b.weight(b.stream)}) if b.stream is not None else b for b in batches]
    stream = batches[0].stream if len({b.stream for b in batches}) == 1 else None
    parts = [b.flat() for b in batches]
    scored = frozenset[str]().union(*(p.scored for p in parts))
    lost = {
        n
        for n in scored
        if any(n not in p for p in parts)
    }
    names = {
        n
        for p in parts
        for n in p.names()
    } - lost
    width = max(p.width for p in parts)
    offsets = np.cumsum([0] + [len(p) for p in parts]).tolist()
    arenas = np.cumsum([0] + [len(p.arena) for p in parts]).tolist()
    whole = {}
    for name in names:
        have = [p for p in parts if name in p]
        like = have[0][name]
        wide = not name.startswith("context") and all(p[name].dim() > 1 and p[name].shape[1] == p.width for p in have)
        pieces = []
        for p, rows, steps in zip(parts, offsets, arenas, strict=False):
            x = p[name] if name in p or name in DERIVED else _fill(name, len(p), like, p.width if wide else None)
            if name in POINTERS:
                x = torch.where(x < 0, x, x + rows)
            elif name == "step":
                x = torch.where(x < 0, x, x + steps)
            pieces.append(_widen(x, width, name) if wide else x)
        whole[name] = torch.cat(_pad_alike(pieces))
    links: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}
    for p, rows in zip(parts, offsets, strict=False):
        for name, (index, columns) in p.links.items():
            before, old = links.get(name, (index[:0], {}))
            pairs = {k: (old.get(k), columns.get(k)) for k in {**old, **columns}}
            joined = {k: _join_column(k, len(before), x, len(index), y) for k, (x, y) in pairs.items()}
            links[name] = torch.cat([before, index + rows]), joined
    return Batch(
        whole,
        None,
        None,
        [
            s
            for p in parts
            for s in p.arena
        ],
        links,
        stream,
        scored - lost,
    )


def _join_column(name: str, n: int, old: Tensor | None, m: int, new: Tensor | None) -> Tensor:
    """Return [n + m] a column of links, which the first n or the last m may lack."""
    like = old if new is None else new
    assert like is not None
    parts = [x if x is not None else _fill(name, k, like, None) for x, k in ((old, n), (new, m))]
    return torch.cat(parts)


def _fill(name: str, rows: int, like: Tensor, width: int | None) -> Tensor:
    shape = (rows, *like.shape[1:]) if width is None else (rows, width, *like.shape[2:])
    return torch.full(shape, missing_value(name, like.dtype), dtype=like.dtype)


def _widen(x: Tensor, width: int, name: str) -> Tensor:
    """Widen [B, k, ...] -> [B, width, ...]: padding is False, -1, or 0 (temperature 1), so that it never reaches a
    statistic."""
    if x.shape[1] >= width:
        return x
    fill = 0 if x.is_floating_point() or x.dtype == torch.bool or name == "action" else -1
    fill = 1 if name == "temperature" else fill
    return torch.cat([x, x.new_full((len(x), width - x.shape[1], *x.shape[2:]), fill)], 1)


def _pad_alike(pieces: list[Tensor]) -> list[Tensor]:
    """Pad pieces that differ in an axis behind the first (kept ids, alternatives, actions) to the largest: -1 in
    integers, else 0."""
    shape = [
        max(sizes)
        for sizes in zip(
            *(x.shape[1:] for x in pieces),
            strict=True,
        )
    ]
    out = []
    for x in pieces:
        if list(x.shape[1:]) != shape:
            y = x.new_full((len(x), *shape), 0 if x.is_floating_point() or x.dtype == torch.bool else -1)
            y[(slice(None), *(slice(n) for n in x.shape[1:]))] = x
            x = y
        out.append(x)
    return out

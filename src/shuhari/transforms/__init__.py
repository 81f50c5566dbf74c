"""Whole batch in, columns out: credit, shaping, filters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shuhari.batch import Batch
from shuhari.needs import Need
from shuhari.ports import Ctx, Transform
from shuhari.ports.declares import needs_of


def apply(transforms: Iterable[Transform], batch: Batch, ctx: Ctx, needs: Sequence[Need] = ()) -> Batch:
    """Score once what the transforms, and `needs` beside them, want of models, then transform in order.

    ValueError where one gives a column that was there other axes: [B] beside [B, 1] broadcasts to [B, B] in what reads
    it."""
    ordered = list(transforms)
    batch = ctx.score(batch, [*(n for t in ordered for n in needs_of(t)), *needs])
    for transform in ordered:
        before, batch = batch, transform(batch, ctx)
        for name, value in batch.own.items():
            if value is before.own.get(name) or name not in before or value.dim() == before[name].dim():
                continue
            made, shape, expected = type(transform).__name__, tuple(value.shape), tuple(before[name].shape)
            raise ValueError(f"{made} gave column {name!r} the shape {shape}: expected {expected}, as before")
    return batch

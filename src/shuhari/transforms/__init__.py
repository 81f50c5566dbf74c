"""Whole batch in, columns out: credit, shaping, filters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shuhari.batch import Batch
from shuhari.needs import Need
from shuhari.ports import Ctx, Transform
from shuhari.ports.declares import needs_of


def apply(transforms: Iterable[Transform], batch: Batch, ctx: Ctx, needs: Sequence[Need] = ()) -> Batch:
    """Score once what the transforms, and `needs` beside them, want of models, then transform in order."""
    ordered = list(transforms)
    batch = ctx.score(batch, [*(n for t in ordered for n in needs_of(t)), *needs])
    for transform in ordered:
        batch = transform(batch, ctx)
    return batch

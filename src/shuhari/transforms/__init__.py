"""Transforms: add columns to whole batches: credit, shaping, filters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from shuhari.batch import Batch
from shuhari.needs import Need
from shuhari.ports import Ctx, Transform
from shuhari.ports.declares import needs_of

Call = Callable[[Transform, Batch, Ctx], Batch]


def call_transform(transform: Transform, batch: Batch, ctx: Ctx) -> Batch:
    """Calls a transform. Raises TypeError if it returns no batch; ValueError if it drops rows, or changes the axes of
    an existing column: [B] instead of [B, 1] would broadcast to [B, B] for its readers."""
    out: object = transform(batch, ctx)
    made = type(transform).__name__
    if not isinstance(out, Batch):
        given = "None" if out is None else f"a {type(out).__name__}"
        raise TypeError(f"{made} returned {given}: expected the batch with columns added, batch.put(columns)")
    if len(out) < len(batch):  # one row may become several
        message = "a filter deletes none: it sets weights to 0, as of the column 'weight/rl'"
        raise ValueError(f"{made} returned {len(out)} rows of {len(batch)}: {message}")
    for name, value in out.own.items():
        if value is batch.own.get(name) or name not in batch or value.dim() == batch[name].dim():
            continue
        shape, expected = tuple(value.shape), tuple(batch[name].shape)
        raise ValueError(f"{made} gave column {name!r} the shape {shape}: expected {expected}, as before")
    return out


def apply(
    transforms: Iterable[Transform], batch: Batch, ctx: Ctx, needs: Sequence[Need] = (), call: Call = call_transform
) -> Batch:
    """Scores once the needs of the transforms, and `needs` in addition, then transforms in order, each by `call`."""
    ordered = list(transforms)
    batch = ctx.score(
        batch,
        [
            *(
                n
                for t in ordered
                for n in needs_of(t)
            ),
            *needs,
        ],
    )
    for transform in ordered:
        batch = call(transform, batch, ctx)
    return batch

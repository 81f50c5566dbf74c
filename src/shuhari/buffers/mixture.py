"""Joins several buffers into one optimiser batch.

Axes: `B` rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

import torch

from shuhari.batch import Batch
from shuhari.bounds import Length, check
from shuhari.kernel.columns import missing_value
from shuhari.kernel.join import cat
from shuhari.kernel.registry import register
from shuhari.ports import Buffer, Ctx
from shuhari.ports.declares import together


@register("buffer", "mixture")
@dataclass
class Mixture:
    """Joins the batches of several buffers into one: the first draw of each, then the second of each, and so on.

    If one has fewer draws, the others continue without it. Rows that a member did not mark for a stream have weight 0
    on it, so each term sees its own. Successors of replayed rows are added, so that `Batch.successors` finds them. The
    members get events and are saved on their own, like every component.
    """

    buffers: Mapping[str, Buffer]
    """Name -> buffer; any names, which become part of the keys of their settings."""
    ahead: Length = 1
    """Number of decisions added after each replayed row; set it to n for n-step targets."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), *self.buffers.values())

    def wanted(self) -> int:
        return max((b.wanted() for b in self.buffers.values()), default=0)

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        for drawn in zip_longest(*(b.draw(ctx) for b in self.buffers.values())):
            yield join_draws([b for b in drawn if b is not None], self.ahead)


def join_draws(batches: list[Batch], ahead: int = 1) -> Batch:
    """Concatenates batches; rows keep up to `ahead` successors, also those outside a view. If there were more, the last
    one is marked (`cut`)."""
    if len(batches) == 1:
        return batches[0]
    parts, keep, first = [], [], 0
    for batch in batches:
        keep.append(torch.arange(first, first + len(batch)))
        beyond, cut = _find_successors(batch, ahead)
        parts.append(batch)
        if len(beyond):  # the successors follow their rows, without weight, and are not drawn
            assert batch.rows is not None
            rows = torch.cat([batch.rows, beyond])
            view = Batch(batch.whole, rows, None, batch.arena, batch.links, batch.stream)
            parts[-1] = view.put({n: _extend(batch[n], len(beyond), n) for n in {*batch.own, *batch.stamps}})
            if bool(cut.any()):
                parts[-1] = parts[-1].put({"cut": torch.cat([torch.zeros(len(batch), dtype=torch.bool), cut])})
            parts[-1].scored = batch.scored
        first += len(parts[-1])
    whole, rows = cat(parts), torch.cat(keep)
    return whole if len(rows) == len(whole) else whole.take(rows)


def _find_successors(batch: Batch, ahead: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (the rows that follow a view's, up to `ahead` decisions on, and are not in it; which of them have
    successors that are left out)."""
    none = torch.zeros(0, dtype=torch.long)
    if batch.rows is None:
        return none, none.bool()
    child, found = Batch(batch.whole)["child"], list[torch.Tensor]()
    here = torch.zeros(len(child), dtype=torch.bool)
    here[batch.rows] = True
    at = batch["child"]
    for _ in range(ahead):
        at = at[at >= 0]
        at = at[~here[at]].unique()
        here[at] = True
        found.append(at)
        at = child[at]
    beyond = torch.cat(found)
    after = child[beyond]
    return beyond, (after >= 0) & ~here[after.clamp(min=0)]


def _extend(x: torch.Tensor, n: int, name: str) -> torch.Tensor:
    return torch.cat([x, x.new_full((n, *x.shape[1:]), missing_value(name, x.dtype))])

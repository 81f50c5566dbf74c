"""The items that credit compares, whole rows or turns: reads a number of each, and spreads it back over its decisions.

A turn is a segment of a row with a decision; one in a row of its own, if the context is rebuilt, is a turn of its
episode like any other. Left out: turns of others and given turns; a call split by a branch of a tree is a turn in each
of its rows.

Axes: `B` rows, `K` positions, `U` compared items.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shuhari.batch import Batch


@dataclass(frozen=True)
class Compared:
    """The compared items. row, first [U]: the row of each, and its first decision there (0 if it has none); at [B, K]:
    the item of each decision. `name` in errors: "row" or "turn"."""

    name: str
    row: Tensor
    first: Tensor
    at: Tensor
    mask: Tensor

    def read(self, x: Tensor, column: str) -> Tensor:
        """Returns [U] the number of each in x [B] or [B, K]. Raises ValueError if x differs within one."""
        if x.dim() == 1 or x.shape[1:] == (1,):
            return x.flatten()[self.row]
        if x.shape != self.mask.shape:
            raise ValueError(f"advantage: column {column!r} has the shape {tuple(x.shape)}: expected one number a "
                             f"row, or one a position, {tuple(self.mask.shape)}")  # fmt: skip
        found = x[self.row, self.first]
        if not len(found):
            return found
        first = found[self.at]
        if bool(((x != first) & self.mask & ~(x.isnan() & first.isnan())).any()):
            hint = "" if self.name == "turn" else ", or level = 'turn' where it is one a turn"
            told = f"differs within a {self.name}: expected one number a {self.name}{hint}"
            raise ValueError(f"advantage: column {column!r} {told}")
        return found

    def read_whole(self, x: Tensor, column: str) -> Tensor:
        """Returns [U] the same as integers. Raises ValueError if a deciding one is not an integer."""
        found = self.read(x, column)
        if not found.is_floating_point():
            return found.long()
        odd = self.mask[self.row].any(1) & (found != found.round())  # NaN is no integer either
        if bool(odd.any()):
            raise ValueError(f"advantage: unit is {column!r}, a column that holds {float(found[odd][0]):g}: expected "
                             f"whole numbers, one a {self.name}")  # fmt: skip
        return torch.where(found == found.round(), found, -1.0).long()

    def spread(self, x: Tensor) -> Tensor:
        """Returns [B, K] x [U] on each of its decisions, 0 elsewhere."""
        return x[self.at] * self.mask if len(x) else torch.zeros(self.mask.shape)


def find_rows(batch: Batch) -> Compared:
    """Returns every row, whether it decides or not: U is B."""
    mask, row = batch["mask"], torch.arange(len(batch))
    return Compared("row", row, mask.int().argmax(1), row[:, None].expand(mask.shape), mask)


def find_turns(batch: Batch) -> Compared:
    """Returns every turn, in the order of rows and then of time. Raises ValueError for rows without turns."""
    mask = batch["mask"]
    if len(batch) and "segment" not in batch:
        raise ValueError("advantage: level is 'turn', and these rows have no turns (no column 'segment', which text "
                         "has): expected level = 'row'")  # fmt: skip
    B, K = mask.shape
    key = _key(batch)
    keys, inverse = torch.unique(key[mask], return_inverse=True)  # sorted
    at = torch.zeros(B, K, dtype=torch.long)
    at[mask] = inverse
    place = torch.arange(B * K)[mask.flatten()]
    first = torch.full((len(keys),), B * K).scatter_reduce(0, inverse, place, "amin")
    return Compared("turn", first // K, first % K, at, mask)


def add_rewards(batch: Batch, turns: Compared, x: Tensor) -> Tensor:
    """Returns [U] the sum of x [B, K] over the positions of each turn, including those without a decision."""
    key, own = _key(batch), _key(batch)[turns.row, turns.first]
    place = torch.searchsorted(own, key).clamp(max=max(len(own) - 1, 0))
    within = (batch["segment"] >= 0) & (own[place] == key) if len(own) else torch.zeros_like(turns.mask)
    return x.new_zeros(len(own)).index_add_(0, place[within], x[within])


def number_turns(batch: Batch, turns: Compared) -> Tensor:
    """Returns [U] the number of earlier turns of the same role in each turn's episode, along its path."""
    count = torch.bincount(turns.row, minlength=len(batch))  # [B] turns of a row
    before, role, up = torch.zeros_like(count), batch["role"], batch.local(batch["parent"])
    parent = up
    while bool((up >= 0).any()):
        above = up.clamp(min=0)
        before += torch.where((up >= 0) & (role[above] == role), count[above], 0)
        up = torch.where(up < 0, up, parent[above])
    within = torch.arange(len(turns.row)) - (count.cumsum(0) - count)[turns.row]
    return before[turns.row] + within


def _key(batch: Batch) -> Tensor:
    """[B, K] a number of each (row, segment), in their order."""
    B, K = batch["mask"].shape
    return torch.arange(B)[:, None] * (K + 1) + batch["segment"] + 1

"""What credit compares: whole rows, or the turns of rows that are several; a number of each, and back to decisions.

A turn is a segment of a row in which something is decided; one that is a row of its own, as where the context is
rebuilt, is a turn of its episode like any other. Left out: turns in which another moved or that were given, which are
nobody's; a call that a branch of a tree splits is a turn in each of its rows.

Axes: `B` rows, `K` positions, `U` what is compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shuhari.batch import Batch


@dataclass(frozen=True)
class Compared:
    """row, first [U]: where each is, and its first decision there (0 where it decides nothing); at [B, K]: which one a
    decision is of. `name` in errors: "row" or "turn"."""

    name: str
    row: Tensor
    first: Tensor
    at: Tensor
    mask: Tensor

    def read(self, x: Tensor, column: str) -> Tensor:
        """[U] the number of each in x [B] or [B, K]. ValueError where x differs within one."""
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
        """[U] the same as whole numbers. ValueError where one of those that decide is none."""
        found = self.read(x, column)
        if not found.is_floating_point():
            return found.long()
        odd = self.mask[self.row].any(1) & (found != found.round())  # NaN is no whole number either
        if bool(odd.any()):
            raise ValueError(f"advantage: unit is {column!r}, a column that holds {float(found[odd][0]):g}: expected "
                             f"whole numbers, one a {self.name}")  # fmt: skip
        return torch.where(found == found.round(), found, -1.0).long()

    def spread(self, x: Tensor) -> Tensor:
        """[B, K] x [U] on each of its decisions, 0 elsewhere."""
        return x[self.at] * self.mask if len(x) else torch.zeros(self.mask.shape)


def find_rows(batch: Batch) -> Compared:
    """Every row, whether it decides or not: U is B."""
    mask, row = batch["mask"], torch.arange(len(batch))
    return Compared("row", row, mask.int().argmax(1), row[:, None].expand(mask.shape), mask)


def find_turns(batch: Batch) -> Compared:
    """Every turn, in the order of rows and, in a row, of time. ValueError for rows that do not tell their turns."""
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
    """[U] the sum of x [B, K] over the positions of each turn, also those that decide nothing."""
    key, own = _key(batch), _key(batch)[turns.row, turns.first]
    place = torch.searchsorted(own, key).clamp(max=max(len(own) - 1, 0))
    within = (batch["segment"] >= 0) & (own[place] == key) if len(own) else torch.zeros_like(turns.mask)
    return x.new_zeros(len(own)).index_add_(0, place[within], x[within])


def number_turns(batch: Batch, turns: Compared) -> Tensor:
    """[U] how many turns the same role had before each in its episode, along its path."""
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

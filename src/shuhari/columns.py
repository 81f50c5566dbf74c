"""Columns that need no storing: what they are where nobody said otherwise.

Axes: `B` rows of a view; `parent` and `child` index the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shuhari.data import code

if TYPE_CHECKING:
    from shuhari.batch import Batch

BRANCH = -2  # a child column's mark of several successors


def unknown(name: str, dtype: torch.dtype) -> float:
    """What a row holds in a column that it came without: NaN (integers -1, False), but no weight and temperature 1."""
    if name.startswith("weight/") or dtype == torch.bool:
        return 0
    return 1 if name == "temperature" else torch.nan if dtype.is_floating_point else -1


def of_rows(name: str, batch: Batch) -> bool:
    """Whether a column is of whole rows although its second axis may be as long as the row: what was seen, and an
    action of numbers, or of several choices made at once. Tokens, and choices one after another, are one a position."""
    if name == "action":
        return "length" not in batch and (batch.width == 1 or batch[name].is_floating_point())
    return name == "context" or name.startswith(("context/", "view/"))


def _from_whole(make: Callable[[Mapping[str, Tensor]], Tensor]) -> Callable[[Batch], Tensor]:
    def column(batch: Batch) -> Tensor:
        value = make(batch.whole)
        return value if batch.rows is None else value[batch.rows]

    return column


def _parent(whole: Mapping[str, Tensor]) -> Tensor:
    child = whole.get("child")
    parent = torch.full((len(whole["mask"]),), -1)
    if child is not None:  # stored without parents: chains
        has = (child >= 0).nonzero().squeeze(1)
        parent[child[has]] = has
    return parent


def _child(whole: Mapping[str, Tensor]) -> Tensor:
    parent = whole.get("parent")
    child = torch.full((len(whole["mask"]),), -1)
    if parent is not None:
        has = (parent >= 0).nonzero().squeeze(1)
        child[parent[has]] = has
        child[torch.bincount(parent[has], minlength=len(child)) > 1] = BRANCH
    return child


def _like(fill: float, dtype: torch.dtype, *, wide: bool = False) -> Callable[[Batch], Tensor]:
    return lambda b: torch.full(tuple(b["mask"].shape) if wide else (len(b),), fill, dtype=dtype)


DERIVED: dict[str, Callable[[Batch], Tensor]] = {
    "parent": _from_whole(_parent),
    "child": _from_whole(_child),
    "leaf": lambda b: b["child"] == -1,
    "id": _from_whole(lambda w: torch.arange(len(w["mask"]))),
    "episode": _from_whole(lambda w: torch.arange(len(w["mask"]))),
    "group": lambda b: b["episode"],
    "role": _like(code("policy"), torch.long),
    "task": _like(0, torch.long),
    "lane": _like(-1, torch.long),
    "cont": _like(1.0, torch.float32),
    "status": _like(0, torch.long),
    "length": _like(1, torch.long),
    "duration": _like(1, torch.long),
    "segment": _like(0, torch.long, wide=True),
    "version": _like(0, torch.long, wide=True),
}

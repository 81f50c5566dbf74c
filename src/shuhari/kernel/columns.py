"""Columns that need no storing: what they are where nobody said otherwise; and what the names of columns say.

`reward/<name>`: what a grader gave; `reward` is their weighted sum, which is trained. `weight/<stream>`: which rows,
and how much, a term of that stream learns from. `context/<key>`: a part of an observation that is a mapping.
`view/<role>`: what that role saw in the place of the context. `info/<name>`: of recorded answers, the number of that
name in their problem's `info`. `<role>/<name>`: what a model says (`Need.key`), and
`live/<role>/<name>` the same with a gradient. `length` and `step` are there where actions are text: its tokens are
counted and found there. `resumes`: rows that a lane's last fragment left open. A leading underscore is of the library
alone, and travels with rows only while they are learnt from: `_row`, the row's place in the optimiser batch, on which
its noise hangs; `_used`, its place in the batch that was drawn; `_w/<term>`, the reduction's weights of a term.

`version` is that of the weights that decided, -1 where nobody we know did (a demonstration, a forced beginning), whose
`logp` is then NaN. Of row indices (`parent`, `child`) -1 is none.

Axes: `B` rows of a view; `parent` and `child` index the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

POLICY = 983_591_449_236_985_455  # `data.code("policy")`; wire data lie above columns


class Rows(Protocol):
    """What is read of a batch here."""

    @property
    def whole(self) -> Mapping[str, Tensor]: ...
    @property
    def rows(self) -> Tensor | None: ...
    @property
    def width(self) -> int: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: str) -> bool: ...
    def __getitem__(self, key: str) -> Tensor: ...


INF = float("inf")
LINKED = {  # columns of links that losses read where they are there -> the least and the most that one may be
    "margin": (-INF, INF), "label": (0.0, 1.0), "weight": (0.0, INF)
}  # fmt: skip
BRANCH = -2  # a child column's mark of several successors


def missing_value(name: str, dtype: torch.dtype) -> float:
    """What a row holds in a column that it came without: NaN (integers -1, False), but no weight and temperature 1."""
    if name.startswith("weight/") or dtype == torch.bool:
        return 0
    return 1 if name == "temperature" else torch.nan if dtype.is_floating_point else -1


def is_of_rows(name: str, batch: Rows) -> bool:
    """Whether a column is of whole rows although its second axis may be as long as the row: what was seen, and an
    action of numbers, or of several choices made at once. Tokens, and choices one after another, are one a position."""
    if name == "action":
        return "length" not in batch and (batch.width == 1 or batch[name].is_floating_point())
    return name == "context" or name.startswith(("context/", "view/"))


def _from_whole(make: Callable[[Mapping[str, Tensor]], Tensor]) -> Callable[[Rows], Tensor]:
    def column(batch: Rows) -> Tensor:
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


def _like(fill: float, dtype: torch.dtype, *, wide: bool = False) -> Callable[[Rows], Tensor]:
    return lambda b: torch.full(tuple(b["mask"].shape) if wide else (len(b),), fill, dtype=dtype)


DERIVED: dict[str, Callable[[Rows], Tensor]] = {
    "parent": _from_whole(_parent),
    "child": _from_whole(_child),
    "leaf": lambda b: b["child"] == -1,
    "id": _from_whole(lambda w: torch.arange(len(w["mask"]))),
    "episode": _from_whole(lambda w: torch.arange(len(w["mask"]))),
    "group": lambda b: b["episode"],
    "role": _like(POLICY, torch.long),
    "task": _like(0, torch.long),
    "lane": _like(-1, torch.long),
    "cont": _like(1.0, torch.float32),
    "status": _like(0, torch.long),
    "length": _like(1, torch.long),
    "duration": _like(1, torch.long),
    "segment": _like(0, torch.long, wide=True),
    "version": _like(0, torch.long, wide=True),
}

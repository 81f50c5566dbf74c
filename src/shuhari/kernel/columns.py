"""Columns that need no storing, with their default values; and the meaning of column names.

`reward/<name>`: the grades of a grader; `reward` is their weighted sum, which is trained. `weight/<stream>`: which rows
a term of that stream learns from, and how much. `context/<key>`: a part of an observation that is a mapping.
`view/<role>`: what that role saw in place of the context. `info/<name>`: for recorded answers, the number of that name
in their problem's `info`. `<role>/<name>`: an output of a model (`Need.key`), and `live/<role>/<name>` the same with a
gradient. `length` and `step` exist if actions are text: its tokens are counted and found there. `resumes`: rows that a
lane's last fragment left open. A leading underscore is internal, and present only during an update: `_row`, the row's
place in the optimiser batch, which determines its noise; `_used`, its place in the batch that was drawn; `_w/<term>`,
the reduction's weights of a term.

`version` is that of the weights that decided, -1 if the policy is unknown (a demonstration, a forced beginning); `logp`
is then NaN. In row indices (`parent`, `child`), -1 is none.

Axes: `B` rows of a view; `parent` and `child` index the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

POLICY = 983_591_449_236_985_455  # `data.code("policy")`; wire data lie above columns


class Rows(Protocol):
    """The part of a batch's interface that is read here."""

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
    """Return the value of a row in a column that it came without: NaN (integers -1, False), but weight 0 and
    temperature 1."""
    if name.startswith("weight/") or dtype == torch.bool:
        return 0
    return 1 if name == "temperature" else torch.nan if dtype.is_floating_point else -1


def is_of_rows(name: str, batch: Rows) -> bool:
    """Whether a column is of whole rows although its second axis may be as long as the row: an observation, an action
    of numbers, or several choices made at once. Tokens, and choices one after another, are one a position."""
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

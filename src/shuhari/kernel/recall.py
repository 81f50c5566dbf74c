"""What a policy that remembers carries from decision to decision: one vector, its *memory*.

A policy's ability `memory` is how many values it carries. Whoever plays it (`rollouts.vector`, `playing`) hands
it the memory with what it sees (`with_memory`), gets the memory after the decision back (`Trace.memory`), and begins
each episode with zeros. The memory from which a row was decided is the column `memory` [B, 1, S], also of closing rows.
Scoring begins at stored memories and goes through the rows in between once more (`find_stretches`).

Axes: `B` rows of a view, `S` numbers of a memory, `P` stretches: rows of a chain that are read one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import Batch

MEMORY = "memory"
ALONE = ""  # the key of an observation that has no parts, beside its memory


def with_memory(context: Any, memory: Any) -> Any:
    """What a policy is shown of a context (or of contexts [B, ...]) and the memory that it has (None: it keeps none).
    """
    if memory is None:
        return context
    return {**(context if isinstance(context, Mapping) else {ALONE: context}), MEMORY: memory}


def part_memory(shown: Any) -> tuple[Any, Any]:
    """(context, memory) of what `with_memory` has made; the memory is None if there is none."""
    if not isinstance(shown, Mapping) or MEMORY not in shown:
        return shown, None
    rest = {k: x for k, x in shown.items() if k != MEMORY}
    return rest.get(ALONE, rest), shown[MEMORY]


@dataclass(frozen=True, eq=False)
class Stretches:
    """Rows in the order in which a recurrent net reads them: the first rows of all stretches, longest stretch first,
    then their second rows, and so on, as in a `torch.nn.utils.rnn.PackedSequence`.

    order [B]: positions of the view; sizes: how many stretches have a first, second, ... row; firsts [P]: the position
    of each stretch's first row."""

    order: Tensor
    sizes: Tensor
    firsts: Tensor

    def restore(self, x: Tensor) -> Tensor:
        """x [B, ...], read in this order -> in the order of the view."""
        return torch.empty_like(x).index_copy(0, self.order, x)


def find_stretches(batch: Batch, longest: int | None = None) -> Stretches:
    """The stretches of a view: a row follows the row that it was decided after, if that is in the view too. One of
    several successors follows; the others begin anew, as does every row after `longest` ones."""
    before = batch.local(batch["parent"])
    B = len(before)
    here, has = torch.arange(B), before >= 0
    rows = here[has]
    first = torch.full((B,), B).scatter_reduce(0, before[rows], rows, "amin")  # [B] who follows each row
    before = torch.where(has & (first[before.clamp(min=0)] == here), before, here)  # a first row comes after itself
    start, depth = climb(before)
    if longest is not None and bool((depth >= longest).any()):
        start, depth = climb(torch.where(depth % longest == 0, here, before))
    length = torch.bincount(start, minlength=B)
    firsts = (length > 0).nonzero().squeeze(1)
    firsts = firsts[length[firsts].argsort(descending=True, stable=True)]
    rank = torch.empty(B, dtype=torch.long).index_copy(0, firsts, torch.arange(len(firsts)))
    return Stretches((depth * B + rank[start]).argsort(), torch.bincount(depth), firsts)


def climb(before: Tensor) -> tuple[Tensor, Tensor]:
    """(the first row of each row's chain [B], the number of rows between them [B]) by pointer jumping."""
    up, depth = before, (before != torch.arange(len(before))).long()
    while bool((up[up] != up).any()):
        up, depth = up[up], depth + depth[up]
    return up, depth

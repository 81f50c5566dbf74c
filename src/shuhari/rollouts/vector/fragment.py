"""The arrays of one rollout fragment, and how their rows become batch columns.

Axes: `N` lanes, `T` steps, `B` = (T + 1) * N rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from shuhari.data import Array
from shuhari.needs import decisions
from shuhari.rollouts.vector.lanes import Seen, allocate, map_parts, write
from shuhari.tasks.tells import EXECUTED

SENT = "sent"  # among the extras: the actions that were sent to the environments


class Fragment(NamedTuple):
    """Preallocated arrays [T + 1, N], longer than the used part."""

    seen: Seen  # [T + 1, N, ...] observations
    reward: Array  # float64: returns sum it
    mask: Array
    cont: Array
    episode: Array
    extras: dict[str, Array]  # further columns that environments report: [T + 1, N, ...] each, and `sent`

    @classmethod
    def of(cls, space: spaces.Space[object], rows: int, episode: Array, extras: Mapping[str, Array]) -> Fragment:
        """Allocates `rows` steps for environments in the episodes `episode` [N]; extras: name -> fill value."""
        shape = rows + 1, len(episode)
        numbers = np.zeros(shape), np.ones(shape, bool), np.ones(shape, np.float32)
        nothing = {n: np.full((*shape, *x.shape), x) for n, x in extras.items()}
        made = cls(allocate(space, *shape), *numbers, np.empty(shape, np.int64), nothing)
        made.episode[:] = episode
        return made

    def extend(self, space: spaces.Space[object], episode: Array, extras: Mapping[str, Array]) -> Fragment:
        """Returns a copy with room for twice as many steps; the new rows belong to `episode` [N]."""
        new = Fragment.of(space, 2 * len(self.mask) - 2, episode, extras)
        for to, x in zip(new, self, strict=True):
            write(to, slice(len(self.mask)), x)
        return new

    def tensors(self, rows: int) -> list[Any]:
        """Returns the first `rows` rows as tensors [B, ...]; rewards in single precision."""
        flat = [map_parts(lambda x: torch.from_numpy(x[:rows].reshape(-1, *x.shape[2:])), x) for x in self]
        return [flat[0], flat[1].float(), *flat[2:]]


def join_rows(pieces: list[Tensor | None], n: int) -> Tensor:
    """Joins [T * ring][n / ring, ...] to [(T + 1) * n, ...]: steps without a value are NaN (-1 for integers), closing
    rows 0."""
    known = [p for p in pieces if p is not None]
    like = known[0]
    if len(known) < len(pieces):
        fill = torch.full_like(like, torch.nan if like.is_floating_point() else -1)
        known = [fill if p is None else p for p in pieces]
    return torch.cat([*known, like.new_zeros(n, *like.shape[1:])])


def put_on_last(x: Tensor, K: int) -> Tensor:
    """Maps [B] to [B, K]: at the last position of each row, 0 before."""
    return x[:, None] if K == 1 else torch.cat([x.new_zeros(len(x), K - 1), x[:, None]], 1)


def make_extra_columns(
    extras: dict[str, Tensor], columns: Mapping[str, Tensor], traced: Iterable[str], policy: Any
) -> dict[str, Tensor]:
    """Returns the extra columns that environments report, [B, ...] each. If another action was executed than decided,
    its columns replace the decision's. `traced`: columns of the policy's traces, unknown there unless its `decision`
    gives them."""
    K = columns["mask"].shape[1]
    out = {
        n: put_on_last(x, K) if n.startswith("reward/") else x for n, x in extras.items() if n not in (EXECUTED, SENT)
    }
    if EXECUTED not in extras:
        return out
    executed, sent = extras[EXECUTED], extras[SENT]
    other = (executed != sent).flatten(1).any(1) if executed.dim() > 1 else executed != sent
    other &= columns["mask"].any(1)
    decided = decisions(policy, executed)
    for name in ("action", "logp", *traced):
        x = columns[name]
        new = decided.get(name, torch.full_like(x, torch.nan if x.is_floating_point() else -1))
        out[name] = torch.where(other.view(-1, *[1] * (x.dim() - 1)), new.view_as(x).to(x.dtype), x)
    out["logp"] = out["logp"].where(columns["mask"], 0.0)
    return {**out, "replaced": other.float()}

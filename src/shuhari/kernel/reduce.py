"""Reductions: masked losses to one number, and statistics of groups.

Denominators are those of the whole optimiser batch: the weights are computed on it once and travel with the rows, so
that cutting it into micro-batches changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import nearest

_ODD = 0x1E3779B97F4A7C15
REDUCTIONS = ("decision", "row", "turn", "episode", "group", "constant:N")


def weights(weight: Tensor, batch: Batch, how: str) -> Tensor:
    """Return [B, K] numbers that make `(loss * weights).sum()` the reduction `how` under the stream weights [B, K].

    decision: each decision counts alike (DAPO); row: mean within a row, then over rows (GRPO); turn: mean within a turn
    (a segment of a row), then over the turns of an episode, then over episodes (M-GRPO of WebAgent-R1); episode, group:
    mean over the decisions of the unit, then over units; constant:N: the sum over decisions, divided by N a row (Dr.
    GRPO).
    A weight multiplies the loss of its decision: denominators *count* the decisions, rows and units that have a weight
    other than 0, so a weight of 0.5 everywhere halves the loss.
    """
    w = weight * batch["mask"]
    rows = (w != 0).sum(1)
    live = rows > 0
    if how == "decision":
        return w / rows.sum().clamp(min=1)
    if how == "row":
        return w / rows.clamp(min=1)[:, None] / live.sum().clamp(min=1)
    if how in ("episode", "group"):
        _, unit = torch.unique(batch[how], return_inverse=True)
        total = rows.new_zeros(int(unit.max()) + 1 if len(unit) else 0).index_add_(0, unit, rows)
        return w / total[unit].clamp(min=1)[:, None] / (total > 0).sum().clamp(min=1)
    if how == "turn":
        segment = batch["segment"].clamp(min=0)
        long = rows.new_zeros(len(w), int(segment.max()) + 1 if len(w) else 0).scatter_add_(1, segment, (w != 0).long())
        _, unit = torch.unique(batch["episode"], return_inverse=True)
        total = rows.new_zeros(len(w)).index_add_(0, unit, (long > 0).sum(1))  # turns of each episode
        share = long.gather(1, segment).clamp(min=1) * total[unit].clamp(min=1)[:, None]
        return w / share / (total > 0).sum().clamp(min=1)
    return w / (check_reduction(how) * live.sum().clamp(min=1))


def check_reduction(how: str) -> float:
    """Return the N of `constant:N`, 0 for the other reductions; ValueError for an unknown one."""
    if how in REDUCTIONS[:-1]:
        return 0.0
    name, _, text = how.partition(":")
    if name != "constant":
        raise ValueError(f"reduce is {how!r}; {nearest(how, REDUCTIONS)} (`shuhari components reduce` explains them)")
    try:
        n = float(text)
    except ValueError:
        n = 0.0
    if not n > 0:
        raise ValueError(f"reduce is {how!r}: expected constant:N with N > 0, for example constant:256")
    return n


def reduced(loss: Tensor, w: Tensor) -> Tensor:
    """Return the weighted sum of an unreduced loss: [B, K] by position; [B] takes the whole weight of its row."""
    if loss.dim() == 1:
        w = w.sum(1)
    return (torch.where(w != 0, loss, 0.0) * w).sum()


def group_mean(batch: Batch, x: Tensor, unit: str = "group", *, leaves: bool = True) -> tuple[Tensor, Tensor]:
    """Return ([B] mean of x [B] over the row's unit, [B] how many count).

    `unit`: `group` (of one role), `episode`, `batch`, `state`, or any integer column. NaN (ungraded) does not count;
    nor do inner rows of chains and trees, unless `leaves` is False: a path counts once for each role on it, by that
    role's last row (`ends`)."""
    ok = ~x.isnan()
    if leaves:
        ok = ok & ends(batch)
    inverse = units(batch, unit)
    n = int(inverse.max()) + 1 if len(inverse) else 0
    mean, count = mean_by(torch.where(ok, x, torch.nan), inverse, n)
    return mean[inverse], count[inverse]


def mean_by(x: Tensor, index: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return ([n] mean of the x [B] that share an `index`, [n] how many count); NaN does not count; the mean of none is
    NaN."""
    ok = ~x.isnan()
    count = x.new_zeros(n).index_add_(0, index, ok.to(x.dtype))
    return x.new_zeros(n).index_add_(0, index, torch.where(ok, x, 0.0)) / count, count


def spread_by(x: Tensor, index: Tensor, n: int) -> Tensor:
    """Return [n] the largest minus the smallest of the x [B] that share an `index`; -inf if there are none."""
    high = x.new_full((n,), -torch.inf).scatter_reduce(0, index, x, "amax")
    return high - x.new_full((n,), torch.inf).scatter_reduce(0, index, x, "amin")


def ends(batch: Batch) -> Tensor:
    """Return [B] bool: the last deciding row of each role on a path, which is the one that counts in statistics."""
    end = batch.decides
    if "child" not in batch and "parent" not in batch:
        return end
    end, decides, role, parent = end.clone(), end, batch["role"], batch.local(batch["parent"])
    up = torch.where(decides, parent, -1)
    while bool((up >= 0).any()):
        above = up.clamp(min=0)
        found = (up >= 0) & decides[above] & (role[above] == role)
        end[up[found]] = False
        up = torch.where(found | (up < 0), -1, parent[above])
    return end


def units(batch: Batch, unit: str) -> Tensor:
    """Return [B] the unit of each row, numbered from 0. A group is the samples of one request that one role played; a
    state is where next steps begin: rows with one parent, or those of a group that have none."""
    if unit == "batch":
        return torch.zeros(len(batch), dtype=torch.long)
    if unit == "state":
        up = batch.local(batch["parent"])
        return torch.unique(torch.where(up < 0, -1 - units(batch, "group"), up), return_inverse=True)[1]
    column = batch[unit]
    if unit == "group" and "role" in batch:
        column = column * _ODD + batch["role"]  # a 64-bit hash of the pair (wrapping)
    return torch.unique(column, return_inverse=True)[1]

"""Recorded episodes as columns: the data set of the buffer `offline`, and its card.

A data set has columns in episode order: the decisions of each episode, then one closing row without a decision (the
last observation), as a rollout of lanes writes them. Text is not supported (see `demos`).

Axes: `N` rows of a data set, `T` decisions of an episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.data import EMPTY, Array, nearest
from shuhari.kernel.pack import dense

BINS = 10  # cells per axis of the coverage grid


@dataclass(frozen=True, eq=False)
class RecordedEpisode:
    """One episode: observations [T + 1, ...] (or a mapping of such), actions [T, ...] as the environment takes them,
    rewards name -> [T]; finished: it ended by itself, not by a limit. columns: name -> [T, ...], kept as they are."""

    observations: Any
    actions: Array
    rewards: Mapping[str, Array]
    finished: bool
    columns: Mapping[str, Array] = EMPTY

    def __len__(self) -> int:
        return len(self.actions)


def columns_of(episodes: Iterable[RecordedEpisode]) -> dict[str, Tensor]:
    """Returns the columns of a data set from its episodes. Raises ValueError if there are none, or if lengths do not
    match.

    `context` or `context/<key>`, `taken` (the action as the environment took it; the policy computes `action` from it),
    `reward/<name>` [N, 1], `mask` [N, 1], `cont`, `child`, `last` (the row where the episode ends) and `episode` [N];
    further columns are NaN (integers -1) in closing rows.
    """
    some = [e for e in episodes if len(e)]
    if not some:
        raise ValueError("a data set without a decision: nothing to learn from")
    parts = [_parts(e.observations) for e in some]
    for i, (e, seen) in enumerate(zip(some, parts, strict=True)):
        found = {**{f"observations {k}".strip(): len(x) - 1 for k, x in seen.items()},
                 **{f"reward {k!r}": len(x) for k, x in {**e.rewards, **e.columns}.items()}}  # fmt: skip
        if wrong := next((k for k, n in found.items() if n != len(e)), ""):
            raise ValueError(f"episode {i}: {len(e)} actions, and {wrong} for {found[wrong]} of them")
    T = np.array([len(e) for e in some])
    end = np.cumsum(T + 1) - 1  # the closing rows
    N = int(end[-1]) + 1
    decides = np.ones(N, bool)
    decides[end] = False
    cont = np.ones(N, np.float32)
    cont[end] = [0.0 if e.finished else 1.0 for e in some]
    out: dict[str, Tensor] = {}
    for key in parts[0]:
        out[f"context/{key}" if key else "context"] = dense([np.concatenate([p[key] for p in parts])])[0]
    out["taken"] = _spread([e.actions for e in some], decides, 0)
    for name in dict.fromkeys(
        n
        for e in some
        for n in e.rewards
    ):
        values = [np.asarray(e.rewards.get(name, np.full(len(e), np.nan)), np.float32) for e in some]
        out[f"reward/{name}"] = _spread(values, decides, 0)[:, None]
    for name in dict.fromkeys(
        n
        for e in some
        for n in e.columns
    ):
        like = next(e.columns[name] for e in some if name in e.columns)
        fill = -1 if np.asarray(like).dtype.kind in "iu" else np.nan
        values = [np.asarray(e.columns.get(name, np.full((len(e), *np.shape(like)[1:]), fill))) for e in some]
        out[name] = _spread(values, decides, fill)
    rows = np.arange(N)
    out["mask"] = torch.from_numpy(decides)[:, None]
    out["cont"] = torch.from_numpy(cont)
    out["child"] = torch.from_numpy(np.where(decides, rows + 1, -1))
    out["last"] = torch.from_numpy(np.repeat(end, T + 1))
    out["episode"] = torch.from_numpy(np.repeat(np.arange(len(some)), T + 1))
    return out


def join_sets(sets: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenates data sets. Raises ValueError if their columns differ."""
    out: dict[str, list[Tensor]] = {}
    rows = episodes = 0
    for i, columns in enumerate(sets):
        if i and columns.keys() != out.keys():
            odd = min(columns.keys() ^ out.keys())
            raise ValueError(f"the data sets cannot be joined: only some have the column {odd!r}; expected the same "
                             "columns")  # fmt: skip
        for name, x in columns.items():
            shift = rows if name in ("child", "last") else episodes if name == "episode" else 0
            out.setdefault(name, []).append(torch.where(x < 0, x, x + shift) if shift else x)
        rows, episodes = rows + len(columns["mask"]), episodes + int(columns["episode"].max()) + 1
    return {name: torch.cat(pieces) for name, pieces in out.items()}


def select_episodes(columns: Mapping[str, Tensor], episodes: Tensor) -> dict[str, Tensor]:
    """Returns the data set of these episodes only, in the original order."""
    keep = torch.isin(columns["episode"], episodes)
    to = keep.cumsum(0) - 1
    out = {name: x[keep] for name, x in columns.items()}
    for name in ("child", "last"):
        out[name] = torch.where(out[name] < 0, -1, to[out[name]])
    out["episode"] = torch.unique(out["episode"], return_inverse=True)[1]
    return out


def order_episodes(columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Brings a data set of rows in any order with pointers to successors (a replay's) into episode order, with `last`
    and `episode`. Deciding rows without a successor (overwritten or still to come) close the rows before them."""
    child = columns["child"]
    N = len(child)
    first = torch.ones(N, dtype=torch.bool)
    first[child[child >= 0]] = False
    place, depth, at = torch.empty(N, dtype=torch.long), torch.zeros(N, dtype=torch.long), first.nonzero().squeeze(1)
    chain, d = torch.arange(len(at)), 0
    while len(at):
        place[at], depth[at] = chain, d
        on = child[at] >= 0
        at, chain, d = child[at[on]], chain[on], d + 1
    order = torch.from_numpy(np.lexsort((depth.numpy(), place.numpy())))
    alone = torch.bincount(place)[place] < 2  # a closing row whose decisions are gone
    order = order[~alone[order]]
    out = {name: x[order] for name, x in columns.items() if name not in ("child", "episode", "last")}
    place = torch.unique_consecutive(place[order], return_inverse=True)[1]
    end = torch.bincount(place).cumsum(0) - 1
    rows = torch.arange(len(order))
    decides = rows != end[place]
    out["mask"] = out["mask"] & decides[:, None]
    for name in [n for n in out if n.partition("/")[0] == "reward"]:
        out[name] = out[name].masked_fill(~decides[:, None], 0.0)
    return {**out, "child": torch.where(decides, rows + 1, -1), "last": end[place], "episode": place}


def check_columns(columns: Mapping[str, Tensor], spaces: tuple[Any, Any] | None, whose: str) -> None:
    """Raises ValueError if the observations or actions of a data set do not fit the task, or are not finite."""
    if spaces is None:
        raise TypeError(f"{whose}: recorded episodes are a controller's, and the task is one of text (see 'demos')")
    seen, does = spaces
    parts = {f"context/{k}": s for k, s in seen.items()} if hasattr(seen, "spaces") else {"context": seen}
    have = {n for n in columns if n.partition("/")[0] == "context"}
    if have != parts.keys():
        lost = min(parts.keys() - have, default=min(have, default=""))
        raise ValueError(f"{whose}: the data set has {', '.join(sorted(have)) or 'no observations'}, and the task "
                         f"{', '.join(parts)}; {nearest(lost, have)}")  # fmt: skip
    for name, space in {**parts, **({"taken": does} if "taken" in columns else {})}.items():
        got, want = tuple(columns[name].shape[1:]), tuple(space.shape or ())
        if got != want:
            raise ValueError(f"{whose}: {name.replace('taken', 'actions')} of shape {got}: the task's are {want} "
                             f"({space})")  # fmt: skip
        rows = columns[name][columns["mask"].any(1)] if name == "taken" else columns[name]
        _check_values(rows, space, f"{whose}: {name.replace('taken', 'actions')}")
    for name in (n for n in columns if n.partition("/")[0] == "reward"):
        if bool(columns[name].isinf().any()):
            raise ValueError(f"{whose}: {name} has an infinite number: expected finite ones, or NaN for unknown")


def _check_values(x: Tensor, space: Any, what: str) -> None:
    """Raises ValueError for numbers that are not finite, or not in a discrete space."""
    from gymnasium import spaces

    if x.is_floating_point() and not bool(x.isfinite().all()):
        at = int((~x.isfinite()).reshape(len(x), -1).any(1).nonzero()[0])
        raise ValueError(f"{what}: row {at} is not finite: expected numbers")
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        low = torch.as_tensor(space.start)
        high = low + torch.as_tensor(space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1
    elif isinstance(space, spaces.MultiBinary):
        low, high = torch.tensor(0), torch.tensor(1)
    else:
        return
    odd = (x != x.round() if x.is_floating_point() else x != x) | (x < low) | (x > high)
    if bool(odd.any()):
        at = int(odd.reshape(len(x), -1).any(1).nonzero()[0])
        raise ValueError(f"{what}: row {at} is {x[at].tolist()}: the task's are of {space}")


def examine(
    columns: Mapping[str, Tensor], spaces: tuple[Any, Any] | None, whose: str, more: Iterable[str] = ()
) -> tuple[tuple[str, ...], str]:
    """Returns (warnings about a data set, with those of `more`; a message about the first unknown reward, "" if all are
    known), each beginning with its name `whose`."""
    odd = tuple(f"{whose}: {told}" for told in (*_list_outside(columns, spaces), *more))
    return odd, f"{whose}: {told}" if (told := _find_unknown(columns)) else ""


def _list_outside(columns: Mapping[str, Tensor], spaces: tuple[Any, Any] | None) -> list[str]:
    """Returns a warning if actions lie outside the task's Box, else nothing."""
    from gymnasium.spaces import Box

    if spaces is None or not isinstance(box := spaces[1], Box) or "taken" not in columns:
        return []
    x = columns["taken"][columns["mask"].any(1)]
    low, high, slack = torch.from_numpy(box.low), torch.from_numpy(box.high), 1e-4 * (1 + x.abs())
    out = ((x < low - slack) | (x > high + slack)).reshape(len(x), -1).any(1)
    if not bool(out.any()):
        return []
    at = int(out.nonzero()[0])
    bounds, share = f"[{box.low.min():g}, {box.high.max():g}]", float(out.double().mean())
    return [f"actions: row {at} is {x[at].tolist()}, outside of the task's Box {bounds}, as {share:.2g} of the rows "
            "are: learnt from as they stand"]  # fmt: skip


def _find_unknown(columns: Mapping[str, Tensor]) -> str:
    """Returns a message about the first unknown reward; "" if all are known."""
    decides = columns["mask"].any(1)
    for name in (n for n in columns if n.partition("/")[0] == "reward"):
        if bool((lost := columns[name][decides].isnan().any(1)).any()):
            return f"{name} of row {int(lost.nonzero()[0])} is NaN ({int(lost.sum())} of {len(lost)} rows)"
    return ""


def card_of(columns: Mapping[str, Tensor], reward: str) -> dict[str, Any]:
    """Returns a summary of a data set: counts, the returns (sums of `reward`) and lengths of its episodes, the share
    that ended by itself, and coverage.

    coverage: number of visited cells of a grid over observations and actions (10 bins per axis between the extremes;
    integers as they are), as a share of the transitions; 1: no two are in one cell.
    """
    decides, episode = columns["mask"].any(1), torch.unique(columns["episode"], return_inverse=True)[1]
    n = int(episode.max()) + 1
    total = torch.zeros(n, dtype=torch.float64).index_add_(0, episode, columns[reward].double().sum(1))
    length = torch.bincount(episode[decides], minlength=n).double()
    count = int(decides.sum())
    ends = columns["last"].unique()
    return {
        "episodes": n,
        "transitions": count,
        "return": {"of": reward, "mean": round(float(total.mean()), 6), "quantiles": _quantiles(total)},
        "length": {"mean": round(float(length.mean()), 6), "quantiles": _quantiles(length)},
        "finished": round(float((columns["cont"][ends] == 0).double().mean()), 6),
        "coverage": round(_cells(columns, decides) / count, 6),
    }


def digest(columns: Mapping[str, Tensor]) -> str:
    """Returns a hash of names, types and numbers of all columns."""
    h = blake2b(digest_size=16)
    for name in sorted(columns):
        x = columns[name].contiguous()
        h.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        h.update(x.view(torch.uint8).numpy().data if x.numel() and x.dim() else b"")
    return h.hexdigest()


def _quantiles(x: Tensor) -> list[float]:
    """Returns the minimum, the quartiles, and the maximum."""
    at = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    return [round(v, 6) for v in torch.quantile(x, at).tolist()]


def _cells(columns: Mapping[str, Tensor], decides: Tensor) -> int:
    """Returns how many cells are visited."""
    axes = []
    for name, x in columns.items():
        if name.partition("/")[0] not in ("context", "taken", "action") or x.dtype == torch.uint8:
            continue  # images have no grid
        flat = x[decides].reshape(int(decides.sum()), -1)
        if flat.is_floating_point():
            low, high = flat.amin(0), flat.amax(0)
            flat = ((flat - low) / (high - low).clamp(min=1e-12) * BINS).long().clamp(max=BINS - 1)
        axes.append(flat.long())
    return len(torch.unique(torch.cat(axes, 1), dim=0)) if axes else 0


def _parts(observations: Any) -> dict[str, Array]:
    if isinstance(observations, Mapping):
        return {str(k): np.asarray(x) for k, x in observations.items()}
    return {"": np.asarray(observations)}


def _spread(pieces: Sequence[Array], decides: Array, fill: float) -> Tensor:
    """Returns [N, ...] the episodes' rows at deciding rows, `fill` in closing rows."""
    x = np.concatenate([np.asarray(p) for p in pieces])
    out = np.full((len(decides), *x.shape[1:]), fill, x.dtype)
    out[decides] = x
    return dense([out])[0]

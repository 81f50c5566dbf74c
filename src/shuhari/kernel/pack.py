"""From trajectories to a batch: turns that share a prefix become one row, the rest is padded into columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import STATUS, Batch
from shuhari.data import Array, Payload, Sampling, Status, Step, Trajectory, code, constant, is_tokens, nearest
from shuhari.kernel.columns import BRANCH

CORE = frozenset(
    "id parent child leaf episode group role task lane cont status length mask logp version segment step action "
    "context temperature problem".split()
)


def pack(trajectories: Sequence[Trajectory], *, start: int = 0) -> Batch:
    """Pack trajectories into rows. A step joins its parent's row if it is the only child, decides something, and its
    context begins with the parent's context and action, with the same role and sampling; tokens in between get mask
    False, and `segment` numbers the turns. Row ids count up from `start`.

    Rewards become `reward/<name>` [B, K]: a number is put on the last decision; a name that a trajectory has nowhere is
    NaN on all its rows (ungraded), else absent is 0. Numbers and [K] arrays of `info` become columns. If several turns
    form one row, an array is NaN (integers: -1) at a turn that lacks it, 0 between turns; a number, or anything else,
    is taken from the last turn that has it: what must add up over turns belongs in `Trajectory.info`.
    """
    joined = [_join_turns(t.steps) for t in trajectories]
    counts = [len(j) for j in joined]
    B = sum(counts)
    if not B:
        return Batch({"mask": torch.zeros(0, 1, dtype=torch.bool), "logp": torch.zeros(0, 1)})
    rows, ups, segments, firsts = map(list, zip(*chain.from_iterable(joined), strict=True))
    owner = [
        t
        for t, n in zip(trajectories, counts, strict=True)
        for _ in range(n)
    ]
    requests = {id(t.request): t.request for t in trajectories}  # what they say is worked out once, not once a sample
    place = {key: i for i, key in enumerate(requests)}
    asked = torch.tensor([place[id(t.request)] for t in owner])
    root = np.repeat(np.cumsum(counts) - counts, counts)  # the first row of each row's trajectory
    parent = np.where(np.array(ups) < 0, -1, root + ups)
    episode = start + root
    mask = pad([s.mask for s in rows], False, bool)
    role = {
        name: code(name)
        for name in {
            s.role for s in rows
        }
    }
    unknown = np.float32(np.nan)
    columns = {
        "mask": mask,
        "logp": pad([np.full(len(s.mask), unknown) if s.logp is None else s.logp for s in rows], 0, np.float32),
        "version": pad([s.version for s in rows], -1, np.int64),
        "segment": pad(segments, -1, np.int64),
        "parent": torch.from_numpy(parent),
        "child": _count_children(parent),
        "episode": torch.from_numpy(episode),
        "id": torch.arange(start, start + B),
        "group": torch.tensor([code(r.key or r.problem.id) for r in requests.values()])[asked],
        "task": torch.tensor([code(r.problem.task) for r in requests.values()])[asked],
        "problem": torch.tensor([code(r.problem.task, r.problem.id) for r in requests.values()])[asked],
        "role": torch.tensor([role[s.role] for s in rows]),
        "cont": torch.tensor([s.cont for s in rows], dtype=torch.float32),
        "status": torch.tensor([STATUS[t.status] for t in owner]),
        "step": torch.arange(B),
        **_payloads(rows),
        **_rewards(rows, episode, mask),
        **_stamps(rows, owner, mask.shape[1]),
    }
    plain = Sampling()
    temperatures = [(s.sampling or t.request.sampling or plain) for s, t in zip(rows, owner, strict=True)]
    if any(s.temperature != 1.0 for s in temperatures):
        columns["temperature"] = pad(
            [_temperature(*x) for x in zip(temperatures, segments, firsts, strict=True)], 1, np.float32
        )
    return Batch(columns, None, None, rows)


def _temperature(sampling: Sampling, segment: Array, firsts: list[int]) -> Array:
    """Return [k] the temperature of each position; a ramp counts the decisions of a call, so it starts anew at each
    turn, at the `firsts` of a turn that is the rest of a call."""
    n = np.bincount(segment) if len(firsts) > 1 else [len(segment)]
    return np.concatenate([sampling.temperatures(k, first) for k, first in zip(n, firsts, strict=True)])


def find_usable(batch: Batch) -> Tensor:
    """Return [B] bool: rows of episodes that did not end in an error; the others weigh 0 on every stream."""
    return batch["status"] != STATUS[Status.ERROR]


def pad(rows: Sequence[Array], fill: float, dtype: Any) -> Tensor:
    """Pad ragged [B] of [k, ...] -> [B, max k, ...], with one copy and no loop over rows."""
    n = np.fromiter(map(len, rows), np.int64, len(rows))
    flat = np.concatenate(rows)
    out = np.full((len(rows), int(n.max()), *flat.shape[1:]), fill, dtype)
    out[np.arange(out.shape[1]) < n[:, None]] = flat
    return torch.from_numpy(out)


def _count_children(parent: Array) -> Tensor:
    child, rows = np.full(len(parent), -1), np.flatnonzero(parent >= 0)
    child[parent[rows]] = rows
    child[np.bincount(parent[rows], minlength=len(parent)) > 1] = BRANCH
    return torch.from_numpy(child)


def _join_turns(steps: Sequence[Step]) -> list[tuple[Step, int, Array, list[int]]]:
    """Return (merged step, index of the parent row or -1, segment of each position, `first` of each segment) for each
    row of one trajectory."""
    if len(steps) == 1:
        return [(steps[0], -1, constant(len(steps[0].mask), 0, np.int64), [steps[0].first])]
    rows = rows_of(steps)
    row_of = {
        i: r
        for r, row in enumerate(rows)
        for i in row
    }
    ups = [steps[row[0]].parent for row in rows]
    merged = [
        (*_merge([steps[i] for i in row]), up)
        for row, up in zip(rows, ups, strict=True)
    ]
    return [(step, -1 if up is None else row_of[up], segment, calls) for step, segment, calls, up in merged]


def rows_of(steps: Sequence[Step]) -> list[list[int]]:
    """Return the steps of a trajectory, by index, that `pack` joins to each of its rows, in the order of the rows."""
    children = np.bincount([s.parent for s in steps if s.parent is not None] or [0], minlength=len(steps))
    rows: list[list[int]] = []
    row_of: list[int] = []
    for i, step in enumerate(steps):
        up = step.parent
        if up is not None and children[up] == 1 and _continues_row(step, steps[up]):
            row_of.append(row_of[up])
            rows[row_of[up]].append(i)
        else:
            row_of.append(len(rows))
            rows.append([i])
    return rows


def _continues_row(step: Step, parent: Step) -> bool:
    if not all(map(is_tokens, (step.context, step.action, parent.context, parent.action))):
        return False
    if step.role != parent.role or step.sampling != parent.sampling or parent.views or step.views or step.cont != 1:
        return False
    c, a, n = parent.context, parent.action, step.context
    k = len(c)  # type: ignore[arg-type]
    return (
        len(n) >= k + len(a)  # type: ignore[arg-type]
        and np.array_equal(n[:k], c)  # type: ignore[index, arg-type]
        and np.array_equal(n[k : k + len(a)], a)  # type: ignore[index, arg-type]
    )


def _merge(turns: list[Step]) -> tuple[Step, Array, list[int]]:
    """Merge turns whose contexts grow into one step; what the environment put in between is not a decision. A turn that
    is the rest of a split call continues its segment."""
    if len(turns) == 1:
        return turns[0], np.zeros(len(turns[0].mask), np.int64), [turns[0].first]
    first = turns[0]
    pieces: dict[str, list[Array]] = {n: [] for n in ("action", "mask", "version", "logp", "segment")}
    rewards: dict[str, list[tuple[int, Any]]] = {}
    infos: dict[str, list[tuple[int, Any]]] = {}
    known = any(t.logp is not None for t in turns)
    firsts, spans = [first.first], list[tuple[int, int]]()  # of segments; of turns: where they begin and end
    end = at = 0
    for i, turn in enumerate(turns):
        if i:
            between = turn.context[end:]  # type: ignore[index]
            gap = len(between)  # type: ignore[arg-type]
            for name, fill in (("mask", False), ("version", -1), ("logp", 0.0), ("segment", len(firsts) - 1)):
                pieces[name].append(np.full(gap, fill))
            if gap or turn.first == 0:
                firsts.append(turn.first)
            pieces["action"].append(between)  # type: ignore[arg-type]
            at += gap
        pieces["action"].append(turn.action)  # type: ignore[arg-type]
        pieces["mask"].append(turn.mask)
        pieces["version"].append(turn.version)
        pieces["logp"].append(np.full(len(turn.mask), np.nan, np.float32) if turn.logp is None else turn.logp)
        pieces["segment"].append(np.full(len(turn.mask), len(firsts) - 1))
        for name, value in turn.reward.items():
            rewards.setdefault(name, []).append((at, value if _per_position(value) else _put_last(turn.mask, value)))
        for name, value in turn.info.items():
            infos.setdefault(name, []).append((i, value))
        spans.append((at, at + len(turn.mask)))
        at += len(turn.mask)
        end = len(turn.context) + len(turn.action)  # type: ignore[arg-type]
    k = at
    joined = {n: np.concatenate(p) for n, p in pieces.items()}
    reward = {
        n: _spread([(i, np.asarray(x, np.float32)) for i, x in v], k)
        for n, v in rewards.items()
    }
    info = {n: _merge_info(n, v, spans, k) for n, v in infos.items()}
    step = replace(
        first,
        action=joined["action"].astype(np.int32),
        mask=joined["mask"].astype(bool),
        version=joined["version"].astype(np.int64),
        logp=joined["logp"].astype(np.float32) if known else None,
        reward=reward,
        info=info,
    )
    return step, joined["segment"].astype(np.int64), firsts


def _per_position(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0


def _put_last(mask: Array, value: float) -> Array:
    out = np.zeros(len(mask), np.float32)
    decided = np.flatnonzero(mask)
    out[decided[-1] if len(decided) else -1] = value
    return out


def _merge_info(name: str, pieces: list[tuple[int, Any]], spans: list[tuple[int, int]], k: int) -> Any:
    """Merge an info of several turns, from (turn, value): arrays side by side, of anything else the last."""
    wide = [_per_position(x) and x.dtype.kind in "fib" for _, x in pieces]
    if not any(wide):
        return pieces[-1][1]
    if not all(wide):
        raise ValueError(f"info {name!r} is an array in one turn and a number in another: expected one of the two")
    for i, x in pieces:
        at, end = spans[i]
        if len(x) != end - at:
            raise ValueError(f"info {name!r} has {len(x)} entries for a step of {end - at} positions")
    out = _spread([(spans[i][0], x) for i, x in pieces], k)
    if out.dtype.kind == "f":
        for i in set(range(len(spans))) - {i for i, _ in pieces}:
            out[slice(*spans[i])] = np.nan
    return out


def _spread(pieces: list[tuple[int, Any]], k: int) -> Array:
    like = pieces[0][1]
    width = max((p.shape[1] for _, p in pieces), default=0) if like.ndim > 1 else None
    dtype = np.result_type(*(p for _, p in pieces))
    fill = -1 if dtype.kind == "i" else 0
    out = np.full((k,) if width is None else (k, width), fill, dtype)
    for at, value in pieces:
        if width is None:
            out[at : at + len(value)] = value
        else:
            out[at : at + len(value), : value.shape[1]] = value
    return out


def _payloads(rows: list[Step]) -> dict[str, Tensor]:
    """Return the columns of contexts and actions: text stays ragged behind `step`; anything else stacks to `context`
    (or `context/<key>`) and `action`."""
    if any(is_tokens(s.context) for s in rows):
        actions: list[Any] = [np.zeros(len(s.mask), np.int32) if s.action is None else s.action for s in rows]
        length = torch.tensor([tokens_of(s) for s in rows])
        viewed = {"viewed": torch.ones(len(rows), dtype=torch.bool)} if any(s.views for s in rows) else {}
        return {"length": length, "action": pad(actions, 0, np.int64), **viewed}
    columns = {}
    for role in {
        r
        for s in rows
        for r in s.views
    }:
        columns[f"view/{role}"] = _stack([s.views.get(role, s.context) for s in rows], f"view/{role}")
    first = rows[0].context
    if isinstance(first, Mapping):
        for key in first:
            columns[f"context/{key}"] = _stack([s.context[key] for s in rows], f"context/{key}")  # type: ignore[index, call-overload]
    else:
        columns["context"] = _stack([s.context for s in rows], "context")
    like = next((np.asarray(s.action) for s in rows if s.action is not None), np.zeros((), np.int64))
    columns["action"] = _stack([np.zeros_like(like) if s.action is None else s.action for s in rows], "action")
    return columns


def tokens_of(step: Step) -> int:
    """Return the length of a row of text: context and action (of a bound, the draws are more or fewer than these)."""
    return len(step.context) + (len(step.action) if is_tokens(step.action) else len(step.mask))  # type: ignore[arg-type]


def _stack(values: Sequence[Payload], name: str) -> Tensor:
    arrays = [np.asarray(v) for v in values]
    if len({a.shape for a in arrays}) > 1:
        shapes = sorted({a.shape for a in arrays})
        raise ValueError(f"{name}: rows of shapes {shapes[:4]} do not stack; expected one shape, or int32 token ids")
    return dense(arrays)


def dense(arrays: Sequence[Array]) -> Tensor:
    """Return [B, ...] of arrays of one shape, in the number types that models read: float32 for float64, int64 for
    int32."""
    x = torch.from_numpy(np.stack(arrays))
    return x.float() if x.dtype == torch.float64 else x.long() if x.dtype == torch.int32 else x


def _rewards(rows: list[Step], episodes: Array, mask: Tensor) -> dict[str, Tensor]:
    B, K = mask.shape
    names = sorted({
        n
        for s in rows
        for n in s.reward
    })
    if not names:
        return {}
    m = mask.numpy()
    last = np.where(m.any(1), K - 1 - m[:, ::-1].argmax(1), 0)
    out = {}
    for name in names:
        r = np.zeros((B, K), np.float32)
        values = [s.reward.get(name) for s in rows]
        has = np.array([v is not None for v in values])
        for i, value in enumerate(values):
            if isinstance(value, np.ndarray) and value.ndim:
                r[i, : len(value)] = value
                values[i] = r[i, last[i]]
        r[np.arange(B), last] = [0.0 if v is None else v for v in values]
        r[~np.isin(episodes, episodes[has])] = np.nan
        out[f"reward/{name}"] = torch.from_numpy(r)
    return out


def _stamps(rows: list[Step], owner: list[Trajectory], K: int) -> dict[str, Tensor]:
    """Return the columns of infos: numbers -> [B], NaN if absent; arrays of length K of the step -> [B, K, ...]; the
    rest is no column."""
    facts = [{**t.request.info, **t.info, **s.info} for s, t in zip(rows, owner, strict=True)]
    columns: dict[str, Tensor] = {}
    for name in sorted({
        n
        for f in facts
        for n in f
    }):
        values = [f.get(name) for f in facts]
        like = (
            next(v for v in values if v is not None)
            if any(v is not None for v in values)
            else None
        )
        if name in CORE and _is_column(like):
            raise ValueError(
                f"info {name!r} would overwrite the column of that name: {nearest(name, ())}; choose another name"
            )
        if isinstance(like, bool | int | float | np.number):
            columns[name] = torch.tensor([float("nan") if v is None else float(v) for v in values])
        elif _per_position(like) and like.dtype.kind in "fib":  # type: ignore[union-attr]
            columns[name] = _positions(values, rows, K, name)
    return columns


def _is_column(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.number | np.ndarray)


def _positions(values: list[Any], rows: list[Step], K: int, name: str) -> Tensor:
    like = next(v for v in values if v is not None)
    whole = like.dtype.kind in "ib"
    width = max(v.shape[1] for v in values if v is not None) if like.ndim > 1 else None
    tail = () if width is None else (width,)
    out = np.full((len(rows), K, *tail), -1 if whole else 0.0, np.int64 if whole else np.float32)
    if not whole:
        out[[v is None for v in values]] = np.nan
    for i, v in enumerate(values):
        if v is None:
            continue
        if len(v) != len(rows[i].mask):
            n = len(rows[i].mask)
            raise ValueError(f"info {name!r} has {len(v)} entries for a step of {n} positions: expected one each")
        out[(i, slice(len(v))) if width is None else (i, slice(len(v)), slice(v.shape[1]))] = v
    return torch.from_numpy(out)

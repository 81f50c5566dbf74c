"""Batch concurrent calls: one sampling call of the model, or one forward pass for scores.

Axes: `K` decisions of a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from shuhari.data import Array, Payload, Problem, Request, Sampling, Step, Trajectory, copy_with, is_tokens
from shuhari.kernel.noise import CounterNoise
from shuhari.kernel.pack import dense, pack
from shuhari.needs import Need, Trace, evaluate
from shuhari.ports import ability

T = TypeVar("T")
BLOCK = 16  # decisions whose noise is drawn at once


@dataclass(eq=False)
class Call:
    """One sample call of a group (`asker`): one draw in `context` for each noise key in `keys` [n], the result of
    `future`. `place` numbers the calls of a run. `rows`: the decoder's rows, one a draw; `began`: their partial state
    from when the run was saved; `watch`: see `Local.sample`."""

    name: str
    role: str
    context: Any
    sampling: Sampling
    keys: Array
    asker: str
    place: int
    future: asyncio.Future[list[Trace]]
    began: Sequence[Any] = ()
    watch: Callable[[Any, int, float], None] | None = None
    rows: list[Any] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Query:
    """One score call: columns `names` of `step` under `role`."""

    role: str
    step: Step
    names: tuple[str, ...]
    future: asyncio.Future[Mapping[str, Array]]


def answer_calls(model: Any, calls: Sequence[Call], tokens: int, version: int) -> list[list[Trace]]:
    """Return the draws of calls that share one sampling, in batches of at most `tokens` (0: one batch)."""
    contexts, sampling = (
        [
            c.context
            for c in calls
            for _ in range(len(c.keys))
        ],
        calls[0].sampling,
    )
    noise = np.concatenate([c.keys for c in calls])
    text = is_tokens(contexts[0])
    traces: list[Trace] = []
    for part in _parts(contexts, sampling, tokens) if text else [slice(0, len(contexts))]:
        rows = contexts[part] if text else _stack(contexts[part])
        block = min(BLOCK, sampling.max_new) if text else 1
        with torch.no_grad():
            traces += model.sample(rows, sampling, noise=CounterNoise(noise[part], block))
    done = iter([add_text(copy_with(t, version=version), model) for t in traces])
    return [
        [next(done) for _ in range(len(c.keys))]
        for c in calls
    ]


def add_text(trace: Trace, model: Any) -> Trace:
    """Return the trace with `info["text"]`, if it holds tokens and the model decodes."""
    decode = ability(model, "decode")
    if not is_tokens(trace.action) or decode is None:
        return trace
    return copy_with(trace, info={**trace.info, "text": decode(trace.action)})


def answer_queries(models: Mapping[str, Any], queries: Sequence[Query]) -> list[Mapping[str, Array]]:
    """Return the columns of queries that share one role and the same names."""
    request = Request(Problem("score", "", None))
    batch = pack([Trajectory(request, (q.step,)) for q in queries])
    needs = [parse_need(queries[0].role, name) for name in queries[0].names]
    with torch.no_grad():
        columns = evaluate(batch, needs, models)
    return [
        {name: columns[need.key][i, : len(q.step.mask)].numpy() for name, need in zip(q.names, needs, strict=True)}
        for i, q in enumerate(queries)
    ]


def parse_need(role: str, name: str) -> Need:
    """Parse the name of a score: `kl:reference` is the `kl` of `role` and of the roles behind the colon."""
    what, _, others = name.partition(":")
    return Need((role, *others.split(",")) if others else (role,), what)


def list_roles(role: str, names: Sequence[str]) -> list[str]:
    """List the roles whose models a score needs, each once."""
    return list(dict.fromkeys((
        role,
        *(
            r
            for name in names
            for r in parse_need(role, name).roles
        ),
    )))


def group_by(items: Sequence[T], kind: Callable[[T], Hashable]) -> list[list[T]]:
    """Group items by kind, in order of appearance."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(kind(item), []).append(item)
    return list(groups.values())


def fail(waiting: Sequence[Any], error: Exception) -> None:
    """Fail all waiting calls with the error, so that none is left waiting."""
    # a future refuses StopIteration
    shown = RuntimeError(f"the model raised {error!r}") if isinstance(error, StopIteration) else error
    for item in waiting:
        if not item.future.done():
            item.future.set_exception(shown)


def _parts(contexts: Sequence[Any], sampling: Sampling, tokens: int) -> list[slice]:
    """Split consecutive rows into slices within the budget of tokens; a row above the budget is a slice of its own."""
    if not tokens:
        return [slice(0, len(contexts))]
    parts, first, longest = [], 0, 0
    for i, context in enumerate(contexts):
        longest = max(longest, len(context))
        if i > first and (i + 1 - first) * (longest + sampling.max_new) > tokens:
            parts.append(slice(first, i))
            first, longest = i, len(context)
    return [*parts, slice(first, len(contexts))]


def _stack(contexts: Sequence[Payload]) -> Any:
    """Stack dense contexts into a [B, ...] tensor, or into a mapping of tensors."""
    first = contexts[0]
    if isinstance(first, Mapping):
        return {
            k: _stack([c[k] for c in contexts])  # type: ignore[index, call-overload]
            for k in first
        }
    return dense([np.asarray(c) for c in contexts])

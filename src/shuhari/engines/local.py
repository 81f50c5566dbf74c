"""The engine in this process: calls that wait at the same time share one forward of their model.

Left out: a cache of prompts across calls, other processes, interruption. Weights are read where they live, so `sync`
only notes their version.

Axes: `K` decisions of a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from shuhari.data import EMPTY, Array, Payload, Problem, Request, Sampling, Step, Trajectory, is_tokens
from shuhari.models.decoding import NoRoom
from shuhari.needs import Need, Trace, evaluate, role_model
from shuhari.noise import CounterNoise, keys
from shuhari.pack import dense, pack
from shuhari.registry import register

T = TypeVar("T")
BLOCK = 16  # decisions whose noise is drawn at once


@dataclass(frozen=True, eq=False)
class Call:
    """One sample call: `n` draws in `context`, for the `future`. `keys` [n] name their noise."""

    role: str
    context: Any
    sampling: Sampling
    keys: Array
    future: asyncio.Future[list[Trace]]


@dataclass(frozen=True, eq=False)
class Query:
    """One score call: the columns `names` of `step` under `role`."""

    role: str
    step: Step
    names: tuple[str, ...]
    future: asyncio.Future[Mapping[str, Array]]


@register("engine", "local")
@dataclass
class Local:
    """Serves every role's policy from this process.

    `tokens`: the largest forward, rows times (context + new tokens), so that a large batch is sampled in parts; 0: all
    at once. What a draw gives depends on the run's `seed`, its key and its number among the n only, not on what else is
    waiting. A model may have a `limit`, the longest row of tokens that it reads: a call beyond it fails alone. The run
    sets `seed` and `charge`; charged are `tokens` (drawn) and `prompt_tokens` (read).
    """

    tokens: int = 0
    seed: int = field(init=False, default=0)
    version: int = field(init=False, default=0)
    models: Mapping[str, Any] = field(init=False, default_factory=lambda: EMPTY)
    charge: Callable[[str, float], None] = field(init=False, default_factory=lambda: _free)

    def __post_init__(self) -> None:
        self._calls: list[Call] = []
        self._queries: list[Query] = []

    def sync(self, models: Mapping[str, Any], version: int) -> None:
        """From now on these models answer, and their traces carry this version."""
        self.models, self.version = models, version

    async def sample(
        self, role: str, context: Any, sampling: Sampling, n: int = 1, *, key: Sequence[object]
    ) -> list[Trace]:
        """n traces of `role` in `context`; text ones with `info["text"]`. `key` names the call: it must be the only one
        of the run. Raises NoRoom for a text that leaves the model none, and what the model raises."""
        self._fits(role, context, 1)
        future: asyncio.Future[list[Trace]] = asyncio.get_running_loop().create_future()
        self._wake()
        self._calls.append(Call(role, context, sampling, keys(self.seed, *key, n=n), future))
        traces = await future
        if is_tokens(context):  # charged here, so that it falls to the one who asked
            self.charge("tokens", float(sum(len(t.action) for t in traces)))
            self.charge("prompt_tokens", float(n * len(context)))
        return traces

    async def score(self, role: str, context: Any, action: Any, names: Sequence[str]) -> Mapping[str, Array]:
        """name -> [K] (or [K, n]) of an action that may be anybody's, at temperature 1. Names are those of `Dist`;
        `kl:reference` asks for that of two roles. Raises ValueError for a text longer than a model reads."""
        for reader in dict.fromkeys((role, *(r for n in names for r in n.partition(":")[2].split(",") if r))):
            self._fits(reader, context, len(action) if is_tokens(action) else 1)
        future: asyncio.Future[Mapping[str, Array]] = asyncio.get_running_loop().create_future()
        self._wake()
        step = Step.of(context, action)
        self._queries.append(Query(role, step, tuple(names), future))
        columns = await future
        self.charge("scored_tokens", float(len(step.mask) + (len(context) if is_tokens(context) else 1)))
        return columns

    def _fits(self, role: str, context: Any, more: int) -> None:
        """Refuse here what would fail the whole forward: a text that with `more` tokens is longer than its model."""
        limit = getattr(self.models.get(role), "limit", None) if is_tokens(context) else None
        if limit is not None and not 1 <= len(context) <= limit - more:
            raise NoRoom(len(context), limit, more)

    # ---------------------------------------------------------------- one forward for all that wait

    def _wake(self) -> None:
        if not self._calls and not self._queries:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._flush)  # after the tasks that are ready now have called too

    def _flush(self) -> None:
        calls, queries, self._calls, self._queries = self._calls, self._queries, [], []
        for group in _alike([c for c in calls if not c.future.done()], self._model_and_sampling):
            _answer(group, self._sampled)
        for asked in _alike([q for q in queries if not q.future.done()], lambda q: (q.role, q.names)):
            _answer(asked, self._scored)

    def _model_and_sampling(self, call: Call) -> Hashable:
        return (id(self.models.get(call.role)) if call.role in self.models else call.role), call.sampling

    def _sampled(self, calls: list[Call]) -> list[list[Trace]]:
        model, sampling = role_model(self.models, calls[0].role), calls[0].sampling
        contexts = [c.context for c in calls for _ in range(len(c.keys))]
        noise = np.concatenate([c.keys for c in calls])
        text = is_tokens(contexts[0])
        traces: list[Trace] = []
        for part in self._parts(contexts, sampling) if text else [slice(0, len(contexts))]:
            rows = contexts[part] if text else _stacked(contexts[part])
            block = min(BLOCK, sampling.max_new) if text else 1
            with torch.no_grad():
                traces += model.sample(rows, sampling, noise=CounterNoise(noise[part], block))
        decode = getattr(model, "decode", None) if text else None
        done = iter([self._stamped(t, decode) for t in traces])
        return [[next(done) for _ in range(len(c.keys))] for c in calls]

    def _stamped(self, trace: Trace, decode: Callable[[Any], str] | None) -> Trace:
        info = trace.info if decode is None else {**trace.info, "text": decode(trace.action)}
        return Trace(trace.action, trace.logp, self.version, info)

    def _parts(self, contexts: list[Any], sampling: Sampling) -> list[slice]:
        """Runs of rows within the budget of tokens; a row over it stands alone."""
        if not self.tokens:
            return [slice(0, len(contexts))]
        parts, first, longest = [], 0, 0
        for i, context in enumerate(contexts):
            longest = max(longest, len(context))
            if i > first and (i + 1 - first) * (longest + sampling.max_new) > self.tokens:
                parts.append(slice(first, i))
                first, longest = i, len(context)
        return [*parts, slice(first, len(contexts))]

    def _scored(self, queries: list[Query]) -> list[Mapping[str, Array]]:
        request = Request(Problem("score", "", None))
        batch = pack([Trajectory(request, (q.step,)) for q in queries])
        needs = [Need((queries[0].role, *others.split(",")) if others else (queries[0].role,), name)
                 for name, _, others in (n.partition(":") for n in queries[0].names)]  # fmt: skip
        with torch.no_grad():
            columns = evaluate(batch, needs, self.models)
        return [
            {name: columns[need.key][i, : len(q.step.mask)].numpy() for name, need in zip(q.names, needs, strict=True)}
            for i, q in enumerate(queries)
        ]


def _free(what: str, amount: float) -> None:
    """Outside of a run nothing is charged."""


def _alike(items: list[T], kind: Callable[[T], Hashable]) -> list[list[T]]:
    """Items of one kind together, in order of appearance."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(kind(item), []).append(item)
    return list(groups.values())


def _answer(waiting: list[Any], serve: Callable[[list[Any]], list[Any]]) -> None:
    """Every future gets its answer, or the error: nobody is left waiting."""
    try:
        for item, answer in zip(waiting, serve(waiting), strict=True):
            item.future.set_result(answer)
    except Exception as error:
        # a future refuses StopIteration
        shown = RuntimeError(f"the model raised {error!r}") if isinstance(error, StopIteration) else error
        for item in waiting:
            if not item.future.done():
                item.future.set_exception(shown)


def _stacked(contexts: Sequence[Payload]) -> Any:
    """[B, ...] tensor of dense contexts, or a mapping of tensors."""
    first = contexts[0]
    if isinstance(first, Mapping):
        return {k: _stacked([c[k] for c in contexts]) for k in first}  # type: ignore[index, call-overload]
    return dense([np.asarray(c) for c in contexts])

"""Continuous batching: queued rows enter free slots, generate one token a step, and leave when finished.

A prompt is read once for all rows that begin with it, a chunk at a time, and kept while one of them waits. Rows of
different settings share a forward. New weights may arrive at any token; the tokens of running rows are then read again.
Left out: beams, speculation. Rows are independent: a row's text is a function of its context, its settings, its key and
the weights, up to the rounding of a forward with other neighbours.

Axes: `b` rows that run, `V` vocabulary, `D` hidden, `K` decisions of a row, `P` tokens of a prefix, `W` last tokens.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from shuhari.data import Array
from shuhari.models.text.choice import Stops
from shuhari.models.text.pools import width
from shuhari.models.text.prefill import Prefix, prefill
from shuhari.models.text.pretrained import dtype_of
from shuhari.models.text.rows import Network, NoRoom, Row, Sampler, refuse
from shuhari.models.text.slots import KeyValueCache


@dataclass(frozen=True, eq=False)
class _Waiting:
    """A queued row, its initial tokens, and the keys of that prefix and of the one before it."""

    row: Row
    ids: Array
    name: bytes
    base: bytes | None


class Decoder:
    """Runs `slots` rows at a time. `tokens`: the capacity of the cache, prompts included (0: no limit; a single row may
    exceed it); if rows outgrow it, the latest wait again. `chunk`: the most prompt tokens read between two tokens of
    the running rows. `dtype` of weights and cache: None, as in the model.

    `network` is a `Network`, `lean` its forward (`layouts.lean_of`), `ends` the end tokens, `stops` makes the test for
    stop strings. The weights are copied at `refresh`; without `copy` they are read directly, and must not change while
    rows run.
    """

    def __init__(
        self,
        network: Network,
        lean: Any,
        *,
        ends: Sequence[int],
        stops: Callable[[tuple[str, ...]], Stops | None] = lambda strings: None,
        slots: int = 512,
        tokens: int = 0,
        chunk: int = 512,
        dtype: str | torch.dtype | None = None,
        copy: bool = True,
    ) -> None:
        for name, value, low in (("slots", slots, 1), ("tokens", tokens, 0), ("chunk", chunk, 1)):
            if value < low:
                raise ValueError(f"{name} is {value}: expected at least {low}")
        self.network, self.lean, self.version = network, lean, 0
        self.budget, self.chunk = tokens or 1 << 62, chunk
        self.dtype = dtype_of(dtype) if isinstance(dtype, str) else dtype
        self._weights: Any = None
        self._take = lean.frozen if copy else lean.live
        self._sampler = Sampler(slots, ends, network.suppressed.to(network.device), stops)
        self._cache = KeyValueCache(lean, slots, network.device, self.dtype or lean.lm.dtype)
        self._waiting: deque[_Waiting] = deque()
        self._prefixes: dict[bytes, Prefix] = {}
        self._wanted: Counter[bytes] = Counter()  # number of rows that wait for each prefix
        self._read, self._entered, self._positions = 0, 0, torch.zeros(0)  # of the last step, see `load`

    # ---------------------------------------------------------------- rows come and go

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sampler.taken)

    @property
    def rows(self) -> list[Row]:
        """All rows in flight, in order, with the tokens generated so far."""
        running = [self._sampler.collect(slot, self.version) for slot in self._sampler.taken]
        return sorted([*running, *(w.row for w in self._waiting)], key=lambda row: row.order)

    def said(self) -> list[tuple[Row, int, float]]:
        """Returns (row, token, log-probability) of the newest token of each running row."""
        return self._sampler.newest(self._cache.running)

    @property
    def load(self) -> tuple[int, int, int]:
        """The work of the last step: number of running rows, prompt tokens read, tokens attended to."""
        return len(self._positions) + self._entered, self._read, int(self._positions.sum())

    def add(self, rows: Iterable[Row]) -> None:
        """Queues rows. Raises NoRoom for a context that is empty or fills the model, ValueError for unsupported
        settings and for a row without tokens left; then none is added."""
        rows = list(rows)
        for row in rows:
            self._check(row)
        for row in rows:
            self._waiting.append(self._wait(row))

    def remove(self, rows: Iterable[Row]) -> None:
        """Drops rows in flight; they hold the tokens generated so far."""
        gone = {id(row) for row in rows}
        self._leave([slot for slot in self._cache.running.tolist() if id(self._sampler.rows[slot]) in gone])
        for w in self._waiting:
            if id(w.row) in gone:
                self._note_served(w)
        self._waiting = deque(w for w in self._waiting if id(w.row) not in gone)

    def clear(self) -> None:
        """Drops all rows in flight, also after a step that raised. Weights stay."""
        for holder in (self._waiting, self._prefixes, self._wanted, self._cache, self._sampler):
            holder.clear()

    @torch.no_grad()
    def refresh(self, version: int) -> None:
        """Uses the current weights, named `version`, from now on. Rows in flight keep their tokens and are read again,
        so that later tokens are a function of these tokens and weights only."""
        rows = self.rows
        self.clear()
        self._weights, self.version = self._take(self.dtype), version
        self._waiting.extend(self._wait(row) for row in sorted(rows, key=lambda row: len(row.tokens) == 0))

    def _check(self, row: Row) -> None:
        limit, sampling = self.network.limit, row.sampling
        if not 1 <= len(row.context) < limit:
            raise NoRoom(len(row.context), limit)
        refuse(sampling, self.network.vocabulary, self.network.suppressed)
        if row.ended or len(row.tokens) >= self._limit(row):
            raise ValueError(f"a row that has said {len(row.tokens)} tokens and may say {self._limit(row)} is done")
        self._sampler.kind(sampling)

    def _limit(self, row: Row) -> int:
        return min(row.sampling.max_new, self.network.limit - len(row.context))

    def _wait(self, row: Row) -> _Waiting:
        ids, name, base = row.context, row.context.tobytes(), None
        if len(row.tokens):
            ids = np.concatenate([ids, row.tokens])
            name, base = ids.tobytes(), name
            self._wanted[base] += 1
        self._wanted[name] += 1
        return _Waiting(row, ids, name, base)

    def _note_served(self, w: _Waiting) -> None:
        for name in (w.name, w.base):
            if name is not None:
                self._wanted[name] -= 1
                if not self._wanted[name]:
                    del self._wanted[name]
                    self._prefixes.pop(name, None)

    def _leave(self, slots: Sequence[int]) -> list[Row]:
        """Removes the rows of these slots and returns them, with the tokens generated."""
        rows = [self._sampler.collect(slot, self.version) for slot in slots]
        for slot in slots:
            self._sampler.leave(slot)
        self._cache.leave(np.array(slots, np.int64))
        return rows

    # ---------------------------------------------------------------- a step

    @torch.no_grad()
    def step(self) -> list[Row]:
        """Admits queued rows and generates one token of every running row; returns the finished rows, which leave."""
        if self._weights is None:
            self.refresh(self.version)
        self._widen()
        self._read, self._positions = 0, torch.zeros(0)
        entering = self._enter()
        self._entered = len(entering)
        fresh = np.array([self._sampler.admit(w.row, self._limit(w.row)) for w, _ in entering], np.int64)
        running, hidden = self._cache.running, []
        if len(running):
            ids, positions = self._sampler.last(running).to(self._cache.device), self._cache.begin()
            self._positions = positions
            hidden.append(self.lean.hidden(self._weights, ids, positions, self._cache.attend))
        if entering:
            hidden.append(torch.stack([prefix.hidden for _, prefix in entering]))  # type: ignore[misc]
        if not hidden:
            return []
        logits = self.lean.logits(self._weights, torch.cat(hidden))
        done = self._sampler.decide(np.concatenate([running, fresh]), fresh, logits)
        seats: dict[Prefix, list[int]] = {}
        for slot, (w, prefix) in zip(fresh.tolist(), entering, strict=True):
            if not done[slot]:
                seats.setdefault(prefix, []).append(slot)
            self._note_served(w)
        self._cache.enter(seats)
        return self._leave(done.nonzero()[0].tolist())

    def _widen(self) -> None:
        """Makes room for a token of each row; if the budget has none, the latest row is queued again."""
        self._cache.widen()
        while self._used > self.budget and len(running := self._cache.running) > 1:
            (row,) = self._leave([self._sampler.latest(running)])
            self._waiting.appendleft(self._wait(row))

    @property
    def _used(self) -> int:
        return self._cache.used + sum(len(p.ids) for p in self._prefixes.values())

    def _enter(self) -> list[tuple[_Waiting, Prefix]]:
        """Returns the rows that may enter now, in order, each with its prefix, which is prefilled."""
        front = list(islice(self._waiting, len(self._sampler.free)))
        if not front:
            return []
        front = self._affordable(front)
        todo: dict[Prefix, None] = {}  # in order
        for w in front:
            base = None if w.base is None else self._prefix(w.base, w.row.context)
            prefix = self._prefix(w.name, w.ids, base)
            todo |= dict.fromkeys(prefix.unread())
        while any(p.hidden is None for p in todo):
            self._read += prefill(self.lean, self._weights, [p for p in todo if p.hidden is None], self.chunk)
            if len(self._cache.running):
                break  # the others wait for one chunk at most
        entering, waiting = [], []
        for w in front:
            prefix = self._prefixes[w.name]
            if prefix.hidden is None:
                waiting.append(w)
            else:
                entering.append((w, prefix))
            self._waiting.popleft()
        self._waiting.extendleft(reversed(waiting))
        return entering

    def _affordable(self, front: list[_Waiting]) -> list[_Waiting]:
        """Returns the first of them for which the budget has room; at least one if nothing runs."""
        kept = {
            name
            for w in front
            for name in (w.name, w.base)
        }
        if self.budget < 1 << 62:  # other prefixes are read again in their turn
            self._prefixes = {name: p for name, p in self._prefixes.items() if name in kept}
        used, names, busy = self._used, set(self._prefixes), len(self._cache.running) > 0
        for i, w in enumerate(front):
            for prefix, size in ((w.name, len(w.ids)), (w.base, len(w.row.context))):
                if prefix is not None and prefix not in names:
                    names.add(prefix)
                    used += size
            used += width(len(w.ids) + 1)
            if used > self.budget and (i or busy):
                return front[:i]
        return front

    def _prefix(self, name: bytes, ids: Array, base: Prefix | None = None) -> Prefix:
        if name not in self._prefixes:
            self._prefixes[name] = self._cache.new(ids, base)
        return self._prefixes[name]

"""The engine in this process: calls that wait at the same time share forward passes of their model.

A language model with a `decoder` (`models.text.decoding`) uses continuous batching: a finished row leaves at once, a
waiting row takes its place, and new calls join the running ones. Any other model answers all calls of a moment in one
batch (`batched`). Left out: other processes, and a prompt cache across calls that do not overlap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from shuhari.bounds import Count, check
from shuhari.data import EMPTY, Array, Sampling, Step, is_tokens
from shuhari.engines.batched import Call, Query, add_text, answer_calls, answer_queries, fail, group_by, list_roles
from shuhari.engines.clock import Virtual
from shuhari.engines.copies import Copies
from shuhari.engines.decoders import Decoders
from shuhari.engines.journal import Journal, plain
from shuhari.kernel.noise import keys
from shuhari.kernel.profile import active, sized, spanned
from shuhari.kernel.registry import register
from shuhari.models.text.rows import NoRoom, Row
from shuhari.needs import Trace, role_model
from shuhari.ports import CURRENT_GROUP, ability


@register("engine", "local")
@dataclass
class Local:
    """Sample and score every role in this process; calls that wait at the same time share forwards (continuous
    batching).

    With `staleness` above 0, groups stay in flight across steps, and rows being sampled continue with new weights as
    these arrive; each decision keeps its version and its log-probability.

    A draw depends only on the run's `seed`, its key and its number among the n, not on what else is waiting. A model
    may have a `limit`, the longest row of tokens that it reads: a call beyond it fails alone. The engine charges
    `tokens` (drawn) and `prompt_tokens` (read).
    """

    spreads = ("tokens", "slots", "chunk")
    tokens: Count = 0
    """Largest number of tokens in a decoder's cache, or in one forward (rows times context and new tokens) of a model
    without one; 0 sets no bound, lower it if memory runs out."""
    slots: Count = 0
    """Number of rows that are decoded at once; 0 leaves it to the decoder."""
    chunk: Count = 0
    """Number of prompt tokens that are read between two tokens of the running rows; 0 leaves it to the decoder."""
    dtype: Literal["", "float32", "bfloat16", "float16"] = ""
    """Type of the weights that sample; empty keeps the trained weights' own. With fewer bits the metric `engine/gap`
    shows how far sampling and scoring differ."""
    staleness: Count = 0
    """Number of versions of the weights that a group may be behind when it is trained on; 0 is synchronous, above 0
    sampling and training overlap."""
    virtual: Virtual | None = None
    """Modelled durations in the place of the clock, with which an asynchronous run repeats bit by bit; None takes real
    time."""
    seed: int = field(init=False, default=0)
    version: int = field(init=False, default=0)
    models: Mapping[str, Any] = field(init=False, default_factory=lambda: EMPTY)
    charge: Callable[[str, float], None] = field(init=False, default_factory=lambda: _charge_nothing)

    def __post_init__(self) -> None:
        check(self)
        self._calls: list[Call] = []
        self._queries: list[Query] = []
        self._rows: dict[int, Call] = {}  # row in a decoder -> its call
        self._copies = Copies()
        self._journal = Journal()
        self._held = False  # while a run that is resumed asks again
        self._places = self._watching = 0  # calls in flight that are watched
        self._due: float | None = None  # of the next step, when the run was saved
        own = {"tokens": self.tokens, "slots": self.slots, "chunk": self.chunk, "dtype": self.dtype}
        self._decoders = Decoders({k: v for k, v in own.items() if v})
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = False  # whether a flush is due
        self._timer: asyncio.Handle | None = None  # of the next step of the decoders

    def open(self, seed: int, charge: Callable[[str, float], None]) -> None:
        """Set the seed of the noise, and the ledger to charge."""
        self.seed, self.charge = seed, charge

    def sync(self, models: Mapping[str, Any], version: int) -> None:
        """Serve the current weights of these models from now on, stamped with this version; running rows continue with
        them."""
        self.models, self.version = models, version
        if self.staleness:
            self._copies.renew(models)
        self._decoders.sync(models.values(), version, moving=self.staleness > 0)
        if not self.busy:
            self._places = 0  # places tell apart what is in flight, and nothing is

    @property
    def busy(self) -> bool:
        """Whether the engine has work that does not wait for the outside."""
        return bool(self._calls or self._queries or self._rows)

    # ---------------------------------------------------------------- what is asked

    async def sample(
        self, role: str, context: Any, sampling: Sampling, n: int = 1, *, key: Sequence[object],
        watch: Callable[[Row, int, float], None] | None = None,
    ) -> list[Trace]:
        """Sample n traces of `role` in `context`; text traces have `info["text"]`. `key` must be unique among the run's
        calls. watch: the decoder calls it with (row, token, log-probability) for each token of a row but its last.
        Raises NoRoom for a context that leaves no room for an answer, and what the model raises."""
        name = self._journal.name("sample", key, context, sampling) if self.staleness else ""
        if name and (known := await self._journal.known(name)) is not None:
            return [Trace(**trace) for trace in known]
        self._fits(role, context, 1)
        future: asyncio.Future[list[Trace]] = self._running_loop().create_future()
        began = (self._journal.half(name) if name else None) or {"place": self._places, "began": ()}
        self._places = max(self._places, began["place"] + 1)
        row_keys, asker = keys(self.seed, *key, n=n), CURRENT_GROUP.get()
        call = Call(name, role, context, sampling, row_keys, asker, future=future, watch=watch, **began)
        self._calls.append(call)
        self._watching += watch is not None
        self._wake()
        try:
            traces = await future
        finally:
            self._watching -= watch is not None
            self._give_up(call)
        if is_tokens(context):  # charged here, so that it falls to the one who asked
            self.charge("tokens", float(sum(len(t.action) for t in traces)))
            self.charge("prompt_tokens", float(n * len(context)))
        return traces

    async def score(self, role: str, context: Any, action: Any, names: Sequence[str]) -> Mapping[str, Array]:
        """Return name -> [K] (or [K, n]) for an action, whoever took it, at temperature 1. Names are methods of `Dist`;
        `kl:reference` is the KL of two roles. Raises ValueError for a text longer than the model reads."""
        step = Step.of(context, action)
        name = self._journal.name("score", role, tuple(names), context, action) if self.staleness else ""
        if name and (known := await self._journal.known(name)) is not None:
            return dict(known)
        for reader in list_roles(role, names):
            self._fits(reader, context, len(action) if is_tokens(action) else 1)
        future: asyncio.Future[Mapping[str, Array]] = self._running_loop().create_future()
        self._queries.append(Query(role, step, tuple(names), future))
        self._wake()
        columns = await future
        if name:
            self._journal.keep(CURRENT_GROUP.get(), name, dict(columns), self._running_loop().time())
        self.charge("scored_tokens", float(len(step.mask) + (len(context) if is_tokens(context) else 1)))
        return columns

    def _fits(self, role: str, context: Any, more: int) -> None:
        """Raise NoRoom for a text that with `more` tokens is longer than its model reads, as it would fail the whole
        forward."""
        limit = ability(self.models.get(role), "limit") if is_tokens(context) else None
        if limit is not None and not 1 <= len(context) <= limit - more:
            raise NoRoom(len(context), limit, more)

    # ---------------------------------------------------------------- what is in flight, for the store

    def saved(self) -> dict[str, Any]:
        """Return the answers given to groups in flight, and the partial rows of running calls, as plain data."""
        for _, decoder in self._decoders:
            _ = decoder.rows  # which writes down what they have said
        begun = {asker: dict(calls) for asker, calls in self._journal.begun.items()}
        for c in [*{id(c): c for c in self._rows.values()}.values(), *self._calls]:
            rows = [self._describe_row(row) for row in c.rows] or c.began
            begun.setdefault(c.asker, {})[c.name] = {"place": c.place, "began": rows}
        due = self._timer.when() if isinstance(self._timer, asyncio.TimerHandle) else None
        return {"told": self._journal.answered, "begun": begun, "places": self._places, "due": due}

    def _describe_row(self, row: Row) -> dict[str, Any]:
        state = {k: getattr(row, k) for k in ("tokens", "logp", "version", "extra", "ended")}
        return {**state, "done": id(row) not in self._rows}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Resume from `saved`: recorded answers are replayed, other calls wait for `loaded`."""
        self._journal.load(saved["told"], saved["begun"])
        self._places, self._due, self._held = saved["places"], saved["due"], True

    def loaded(self) -> None:
        """Resume the rows of all calls in flight together, as after a sync."""
        self._held = False
        if self._due is not None:
            self._timer, self._due = self._running_loop().call_at(self._due, self._step), None
        self._flush()
        self.sync(self.models, self.version)

    def forget(self, asker: str) -> None:
        """Drop the recorded answers of a group that is complete."""
        self._journal.forget(asker)

    # ---------------------------------------------------------------- serving

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop; work scheduled on another loop is dropped."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._woken, self._timer = loop, False, None
        return loop

    def _wake(self) -> None:
        if not self._woken and not self._held:
            loop, self._woken = self._running_loop(), True
            loop.call_soon(loop.call_soon, self._flush)  # after the tasks that are ready now have called too

    def _flush(self) -> None:
        """Answer the waiting calls; calls that a decoder serves are queued there."""
        self._woken = False
        calls, queries, self._calls, self._queries = self._calls, self._queries, [], []
        for group in group_by([c for c in calls if not c.future.done()], self._kind):
            try:
                decoder = self._decoder(group[0].role) if is_tokens(group[0].context) else None
            except Exception as error:
                fail(group, error)
                continue
            if decoder is not None:
                self._admit(group, decoder)
            else:
                self._answer(group)
        for query in group_by([q for q in queries if not q.future.done()], lambda q: (q.role, q.names)):
            self._score(query)
        self._schedule()

    def _kind(self, call: Call) -> Hashable:
        return (id(self.models.get(call.role)) if call.role in self.models else call.role), is_tokens(call.context)

    @spanned("generate")
    def _answer(self, group: list[Call]) -> None:
        """Answer calls of a model without a decoder; in virtual time they take as long as their longest draw."""
        for calls in group_by(group, lambda c: c.sampling):
            try:
                answers = answer_calls(self.synced(calls[0].role), calls, self.tokens, self.version)
            except Exception as error:
                fail(calls, error)
                continue
            for call, traces in zip(calls, answers, strict=True):
                self._deliver(call, traces, max(1 if t.logp is None else len(t.logp) for t in traces))

    @spanned("score")
    def _score(self, queries: list[Query]) -> None:
        try:
            models = {role: self.synced(role) for role in list_roles(queries[0].role, queries[0].names)}
            for query, columns in zip(queries, answer_queries(models, queries), strict=True):
                query.future.set_result(columns)
        except Exception as error:
            fail(queries, error)

    def synced(self, role: str) -> Any:
        """Return the model of a role as of the last sync, since calls may come while the trainer updates weights."""
        model = role_model(self.models, role)
        return self._copies.of(model) if self.staleness else model

    def _deliver(self, call: Call, traces: list[Trace], tokens: int = 0) -> None:
        """Answer a call, in virtual time after the duration of `tokens` decoding steps."""
        assert self._loop is not None
        wait = tokens * self.virtual.decode if self.virtual else 0.0
        if self.staleness:
            self._journal.keep(call.asker, call.name, [plain(t) for t in traces], self._loop.time() + wait)
        if wait:
            self._loop.call_later(wait, _set, call.future, traces)
        else:
            _set(call.future, traces)

    # ---------------------------------------------------------------- decoders

    def _decoder(self, role: str) -> Any:
        """Return the decoder of a role's model with the weights of the last sync; None if it has none."""
        return self._decoders.of(self.models.get(role), lambda: self.synced(role), self.version)

    def _admit(self, calls: list[Call], decoder: Any) -> None:
        for call in calls:
            began = call.began or [{"done": False} for _ in call.keys]
            order = ((call.place, j) for j in count())
            call.rows = [
                Row(call.context, call.sampling, key, o, **{k: v for k, v in saved.items() if k != "done"})
                for key, o, saved in zip(call.keys, order, began, strict=False)
            ]
            left = [row for row, saved in zip(call.rows, began, strict=True) if not saved["done"]]
            try:
                decoder.add(left)
            except Exception as error:
                fail([call], error)
            else:
                self._rows |= {id(row): call for row in left}

    def _schedule(self) -> None:
        """Schedule the next step of the decoders: after what is ready now, or at its virtual time."""
        if self._rows and self._timer is None and self._loop is not None and not self._held:
            wait = self.virtual.decode if self.virtual else 0.0
            self._timer = self._loop.call_later(wait, self._step) if wait else self._loop.call_soon(self._step)

    @spanned("generate")
    def _step(self) -> None:
        """Generate one token for each running row."""
        self._timer = None
        for model, decoder in self._decoders:
            if not len(decoder):
                continue
            try:
                finished = decoder.step()
                if active():
                    sized(*decoder.load)
            except Exception as error:  # which rows it had reached nobody knows
                decoder.clear()
                lost = {id(c): c for c in self._rows.values() if self.models.get(c.role) is model}
                self._rows = {row: c for row, c in self._rows.items() if id(c) not in lost}
                fail(list(lost.values()), error)
                continue
            for row, token, logp in decoder.said() if self._watching else ():
                if (watch := self._rows[id(row)].watch) is not None:
                    watch(row, token, logp)
            for row in finished:
                call = self._rows.pop(id(row))
                if not any(id(r) in self._rows for r in call.rows):
                    try:
                        self._deliver(call, [add_text(r.trace(), model) for r in call.rows])
                    except Exception as error:
                        fail([call], error)
        self._schedule()

    def _give_up(self, call: Call) -> None:
        """Drop the rows of cancelled calls."""
        left = [row for row in call.rows if self._rows.pop(id(row), None) is not None]
        if left:
            for _, decoder in self._decoders:
                decoder.remove(left)
            self.charge("tokens", float(sum(len(row.tokens) for row in call.rows)))


def _set(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():
        future.set_result(answer)


def _charge_nothing(what: str, amount: float) -> None:
    """Charge nothing: the default outside of a run."""

"""A profiler of a run's time and memory, phase by phase: `train --profile`. Off by default, and then one look at a
global for each phase; it does not change a bit of the run.

`with span("update"):` marks synchronous work. A waiting coroutine lets others work, so `stretches` marks what it does
between its waits. Times are exclusive and named by path: `evaluate/generate` is the sampling for an evaluation,
`evaluate` the rest of it, `wait` the waiting for the outside (tools), and `other` what has no span: what is between the
phases.

Left out: kernels and lines of code (torch.profiler, py-spy), other processes.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch

if TYPE_CHECKING:
    from shuhari.batch import Batch

T = TypeVar("T")
P = ParamSpec("P")
KEPT = 50  # steps at either end of a run whose spans the trace shows
WAITS = 20_000  # answers of the world outside of which it is kept how long they took
EVENTS = 5_000  # spans of one step in the trace; of what is beyond it has the number

_OFF = nullcontext()
_active: Profile | None = None  # of the step at hand


def span(name: str) -> AbstractContextManager[Any]:
    """Mark the synchronous work inside as the phase `name`, within the current phase."""
    return _OFF if _active is None else _Span(_active, name)


def spanned(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Mark each call of a function, which must not be a coroutine, as the phase `name`."""

    def decorate(call: Callable[P, T]) -> Callable[P, T]:
        @wraps(call)
        def marked(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(name):
                return call(*args, **kwargs)

        return marked

    return decorate


def stretches(name: str, work: Awaitable[T]) -> Awaitable[T]:
    """Mark what an awaitable does between its waits as the phase `name`."""
    return work if _active is None else _Stretches(name, work)


def active() -> bool:
    """Whether a step is recorded."""
    return _active is not None


def sized(*sizes: float) -> None:
    """Record the amounts that the innermost span works on (rows, tokens), which explain its seconds, see
    `Phase.products`. Repeated calls add up."""
    if _active is not None:
        last = _active._open[-1].sizes
        _active._open[-1].sizes = tuple(a + b for a, b in zip(last, sizes, strict=True)) if last else sizes


async def waited(answer: Awaitable[T]) -> T:
    """Wait for the outside (a tool, an environment), and record how long it took, up to WAITS answers of a run. An
    answer that was noticed right after some work of this process is taken to have come in the middle of it."""
    if _active is None:
        return await answer
    recorder, began = _active, _active.clock()
    try:
        return await answer
    finally:
        now, (path, since, until) = recorder.clock(), recorder.last
        idle = path.endswith("wait") or until < began or now - until > until - since  # loops of others tell no waits
        seen = now if idle else (max(began, since) + now) / 2
        if len(recorder.waits) < WAITS:
            recorder.waits.append(seen - began)


def work(kind: str, batch: Batch, roles: tuple[str, ...] = ("policy",)) -> None:
    """Count the tokens of a batch that `roles` have `sampled` or are `trained` on."""
    if _active is not None:
        for role in roles:
            _active.work(kind, role, batch)


@dataclass
class Phase:
    """The totals of one phase: exclusive seconds, spans, and the largest memory seen in it (bytes). `products`: for
    spans with sizes (`sized`), sums of the products of each two of (1, *sizes, seconds), row by row: enough for the
    least squares of seconds by sizes."""

    seconds: float = 0.0
    spans: int = 0
    resident: int = 0
    device: int = 0
    products: list[list[float]] = field(default_factory=list)

    def add(self, sizes: Sequence[float], seconds: float) -> None:
        x = (1.0, *sizes, seconds)
        if not self.products:
            self.products = [[0.0] * len(x) for _ in x]
        for row, a in zip(self.products, x, strict=True):
            for j, b in enumerate(x):
                row[j] += a * b


@dataclass
class Work:
    """Tokens that a model has worked on. `decided`: how many were decisions; `pairs` of a token and one that it attends
    to, in all, and `decided_pairs`, those of decisions."""

    tokens: int = 0
    decided: int = 0
    pairs: int = 0
    decided_pairs: int = 0


@dataclass
class _Open:
    path: str
    began: float
    inner: float = 0.0  # seconds of the spans inside
    memory: tuple[int, int] = (0, 0)
    sizes: tuple[float, ...] = ()


@dataclass
class Profile:
    """A recorder of phases. `clock` gives seconds; `memory` the peaks (resident, device) in bytes since its last
    call."""

    clock: Callable[[], float] = lambda: _now()
    memory: Callable[[], tuple[int, int]] = lambda: (0, 0)
    kept: int = KEPT
    phases: dict[str, Phase] = field(default_factory=dict)
    done: dict[tuple[str, str], Work] = field(default_factory=dict)  # (kind, role) -> what
    steps: int = 0
    seconds: float = 0.0  # of the steps, in all
    edges: dict[str, float] = field(default_factory=dict)  # seconds of the phases in the first and in the last step
    waits: list[float] = field(default_factory=list)  # seconds that answers from outside took
    last: tuple[str, float, float] = ("", 0.0, 0.0)  # the span that ended last, when it began, and its end

    def __post_init__(self) -> None:
        self._opening: dict[str, float] = {}  # seconds of the phases in the first step
        self._open: list[_Open] = []
        self._events: list[tuple[str, float, float]] = []  # path, began, seconds: of the step at hand
        self._lost = 0
        self._first: list[dict[str, Any]] = []
        self._last: deque[dict[str, Any]] = deque(maxlen=self.kept)

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Record what happens inside as one step. One that raises counts too; a recorder inside another suspends the
        outer one."""
        global _active
        before, _active, self._events, self._lost = _active, self, [], 0
        begun = {path: phase.seconds for path, phase in self.phases.items()}
        self._enter("other")
        try:
            yield
        finally:
            _active = before
            root = self._open[0]
            seconds = self._exit()
            now = {path: phase.seconds for path, phase in self.phases.items()}
            self._opening = self._opening if self.steps else now
            self.edges = {path: x - begun.get(path, 0.0) + self._opening.get(path, 0.0) for path, x in now.items()}
            self.steps, self.seconds = self.steps + 1, self.seconds + seconds
            kept: dict[str, Any] = {"step": number, "events": self._events[:-1], "lost": self._lost}
            kept |= {"began": root.began, "seconds": seconds, "resident": root.memory[0]}
            (self._first if len(self._first) < self.kept else self._last).append(kept)

    def work(self, kind: str, role: str, batch: Batch) -> None:
        length, decided = batch["length"].long(), batch["mask"].sum(1)
        read = length - decided
        found = self.done.setdefault((kind, role), Work())
        pairs = int((length * (length + 1)).sum()) // 2
        found.tokens += int(length.sum())
        if kind == "trained" and self._open:
            sized(float(length.sum()))
        found.decided += int(decided.sum())
        found.pairs += pairs
        found.decided_pairs += pairs - int((read * (read + 1)).sum()) // 2

    def _enter(self, name: str) -> None:
        if self._open:
            above = self._open[-1]
            above.memory = _larger(above.memory, self.memory())
            name = name if above.path == "other" else f"{above.path}/{name}"
        else:
            self.memory()
        self._open.append(_Open(name, self.clock()))

    def _exit(self) -> float:
        now, span = self.clock(), self._open.pop()
        span.memory = _larger(span.memory, self.memory())
        seconds, self.last = now - span.began, (span.path, span.began, now)
        phase = self.phases.setdefault(span.path, Phase())
        phase.seconds += seconds - span.inner
        phase.spans += 1
        if span.sizes and self.steps:  # the first step warms up
            phase.add(span.sizes, seconds - span.inner)
        phase.resident, phase.device = _larger((phase.resident, phase.device), span.memory)
        if self._open:
            self._open[-1].inner += seconds
            self._open[-1].memory = _larger(self._open[-1].memory, span.memory)
        if len(self._events) < EVENTS or not self._open:
            self._events.append((span.path, span.began, seconds))
        else:
            self._lost += 1
        return seconds

    def trace(self) -> dict[str, Any]:
        """Return the first and the last steps as Chrome trace events, which Perfetto (ui.perfetto.dev) and
        chrome://tracing open: complete events ("X") in microseconds, and the resident memory as a counter."""
        steps = [*self._first, *self._last]
        zero = steps[0]["began"] if steps else 0.0
        events: list[dict[str, Any]] = []
        for step in steps:
            end = {"lost": step["lost"]} if step["lost"] else {}
            spans = [(f"step {step['step']}", step["began"], step["seconds"]), *sorted(step["events"], key=_began)]
            for path, began, seconds in spans:
                name = path.rpartition("/")[2]
                events.append({"name": name, "ph": "X", "ts": (began - zero) * 1e6, "dur": seconds * 1e6,
                               "pid": 1, "tid": 1, "args": {"path": path, **end}})  # fmt: skip
            at = (step["began"] + step["seconds"] - zero) * 1e6
            events.append({"name": "resident", "ph": "C", "ts": at, "pid": 1, "args": {"bytes": step["resident"]}})
        return {"traceEvents": events, "displayTimeUnit": "ms"}


class _Span:
    __slots__ = ("name", "of")

    def __init__(self, of: Profile, name: str) -> None:
        self.of, self.name = of, name

    def __enter__(self) -> None:
        self.of._enter(self.name)

    def __exit__(self, *_: object) -> None:
        self.of._exit()


@dataclass(eq=False)
class _Stretches(Awaitable[T]):
    name: str
    work: Awaitable[T]

    def __await__(self) -> Generator[Any, Any, T]:
        inner: Any = self.work.__await__()
        go, given = inner.send, None
        while True:
            try:
                with span(self.name):
                    waits_for = go(given)
            except StopIteration as end:
                value: T = end.value
                return value
            try:
                go, given = inner.send, (yield waits_for)
            except BaseException as error:  # a cancellation is the work's own business
                go, given = inner.throw, error


def _began(event: tuple[str, float, float]) -> tuple[float, float]:
    return event[1], -event[2]


def _larger(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return max(a[0], b[0]), max(a[1], b[1])


def _now() -> float:
    if torch.cuda.is_initialized():  # what was asked of it has to be done
        torch.cuda.synchronize()
    return time.perf_counter()


class Peaks:
    """Peaks of memory since the last call, in bytes: (resident, allocated on the GPU). If the system has no resident
    peak that can be reset (all but Linux), it is that of the whole process so far."""

    def __init__(self) -> None:
        try:
            self._reset = os.open("/proc/self/clear_refs", os.O_WRONLY)
        except OSError:
            self._reset = -1

    def __call__(self) -> tuple[int, int]:
        device = 0
        if torch.cuda.is_initialized():
            device = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        resident = _resident_peak()
        if self._reset >= 0:
            try:
                os.pwrite(self._reset, b"5", 0)
            except OSError:
                self.close()
        return resident, device

    def close(self) -> None:
        """Close the file that resets the peak."""
        if self._reset >= 0:
            os.close(self._reset)
            self._reset = -1


def _resident_peak() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

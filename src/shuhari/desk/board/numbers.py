"""The stored steps of runs as arrays, cached while they are viewed.

A thread reads what is missing: of a run of a hundred thousand steps a sample is shown at once, and all steps as soon as
they are read. Of a running run only new steps are read.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from shuhari.data import Array
from shuhari.store import Run
from shuhari.store.directory import read_change_time
from shuhari.store.rows import read_rows
from shuhari.store.sizes import check_table

KEPT = 6  # runs
AT_ONCE = 0.2  # seconds to wait for a reader
CHUNK = 500  # steps that are read at a time
SAMPLE = 400  # steps in the sample that is shown meanwhile
NAMES = 5000  # metrics of a run; further ones have no curve

T = TypeVar("T")
_versions = count(1)


@dataclass
class Steps:
    """The steps of a run: [n] arrays of `step`, `wall` (seconds) and each metric, NaN if a step has none; stored NaN
    becomes infinity. stages: (name, first row). whole: whether these are all steps; last: the last stored step;
    version: changes if known steps became invalid."""

    step: Array
    columns: Mapping[str, Array]
    stages: list[tuple[str, int]]
    whole: bool
    last: int
    version: int

    def to_lists(self, names: Iterable[str] | None = None) -> dict[str, list[Any]]:
        """Return columns of equal length as in `Run.metrics`, None if a step has no value."""
        names = self.columns if names is None else [n for n in names if n in self.columns]
        out: dict[str, list[Any]] = {"step": self.step.tolist(), "stage": []}
        ends = [*(begin for _, begin in self.stages[1:]), len(self.step)][: len(self.stages)]  # no stage before step 1
        for (name, begin), end in zip(self.stages, ends, strict=True):
            out["stage"] += [name] * (end - begin)
        return out | {
            n: [None if x != x else x for x in self.columns[n].tolist()]
            for n in names
        }


@dataclass
class _Table:
    """A growing table of rows."""

    n: int = 0
    values: int = 0  # number of stored values
    step: Array = field(default_factory=lambda: np.zeros(1024, np.int64))
    columns: dict[str, Array] = field(default_factory=dict)
    stages: list[tuple[str, int]] = field(default_factory=list)

    def add(self, step: int, stage: str, wall: float, values: Mapping[str, Any]) -> None:
        size = len(self.step)
        self.values += len(values)
        if self.n == size:
            check_table(len(self.columns), size, self.values)
            self.step = np.concatenate([self.step, np.zeros(size, np.int64)])
            self.columns = {k: np.concatenate([c, np.full(size, np.nan)]) for k, c in self.columns.items()}
        if not self.stages or self.stages[-1][0] != stage:
            self.stages.append((stage, self.n))
        self.step[self.n] = step
        for name, x in [("wall", wall), *((k, v) for k, v in values.items() if k not in ("step", "stage", "wall"))]:
            if not isinstance(x, int | float):
                continue
            column = self.columns.get(name)
            if column is None:
                if len(self.columns) >= NAMES:
                    continue
                column = self.columns[name] = np.full(len(self.step), np.nan)
            try:
                column[self.n] = x if x == x else np.inf
            except OverflowError:  # a whole number of hundreds of digits
                column[self.n] = np.inf
        self.n += 1

    def view(self, whole: bool, last: int, version: int) -> Steps:
        columns = {name: c[: self.n] for name, c in list(self.columns.items())}
        return Steps(self.step[: self.n], columns, list(self.stages), whole, last, version)


class _Kept:
    """Something that a thread computes; `found` is the previous result until it is done."""

    def __init__(self, work: Callable[[], Any], state: float, before: _Kept | None) -> None:
        self.state, self.again = state, 0.0
        self.error: Exception | None = None
        self.found: Any = None if before is None else before.found
        self.thread = threading.Thread(target=self._make, args=(work,), daemon=True)
        self.thread.start()

    def _make(self, work: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            self.found, self.error = work(), None
        except Exception as error:  # raised to the caller
            self.error = error
        self.again = time.monotonic() + 20 * (time.monotonic() - began)


class Known:
    """A run as far as it was read. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._table, self._mark, self._version = _Table(), None, next(_versions)
        self._whole = False  # whether all steps were read once: then few are new
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._sampled: tuple[float, Steps] | None = None
        self._busy = threading.Event()  # somebody waits for a sample: the reader pauses
        self._made: dict[str, tuple[tuple[int, int], float, float, Any]] = {}
        self._kept: dict[str, _Kept] = {}

    def read_steps(self, seconds: float | None = None) -> Steps:
        """Return the steps after at most about that many seconds (default: AT_ONCE): all, or a sample of SAMPLE while
        they are read for the first time."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._error = None
                self._thread = threading.Thread(target=self._read, daemon=True)
                self._thread.start()
            thread = self._thread
        thread.join(AT_ONCE if seconds is None else seconds)
        if self._error is not None:
            raise self._error
        with self._lock:
            if self._whole:
                last = int(self._table.step[self._table.n - 1]) if self._table.n else -1
                return self._table.view(True, last, self._version)
        self._busy.set()
        try:
            if self._sampled is None or time.monotonic() > self._sampled[0] + 5:
                self._sampled = time.monotonic(), self._sample()
            return self._sampled[1]
        finally:
            self._busy.clear()

    def make(self, name: str, work: Callable[[Steps], T], seconds: float | None = None) -> T | None:
        """Return the result of `work` on all steps, cached until there are more, and for twenty times as long as it
        took; None while steps are read."""
        steps = self.read_steps(seconds)
        state = (steps.version, len(steps.step))
        kept = self._made.get(name)
        if kept is not None and (kept[0] == state or time.monotonic() < kept[1] + 20 * kept[2]):
            found: T = kept[3]
            return found
        if not steps.whole:
            return None
        began = time.monotonic()
        found = work(steps)
        self._made[name] = state, time.monotonic(), time.monotonic() - began, found
        return found

    def keep(self, name: str, work: Callable[[], T], seconds: float | None = None) -> T | None:
        """Return the result of `work`, cached until the run is written to again, and for twenty times as long as it
        took. If it takes longer than about that many seconds (default: AT_ONCE), return the previous result, or
        None."""
        with self._lock:
            kept, state = self._kept.get(name), read_change_time(self.path)
            if kept is None or (kept.state != state and time.monotonic() > kept.again and not kept.thread.is_alive()):
                kept = self._kept[name] = _Kept(work, state, kept)
        kept.thread.join(AT_ONCE if seconds is None else seconds)
        if kept.error is not None:
            raise kept.error
        found: T | None = kept.found
        return found

    def _read(self) -> None:
        try:
            with self._reading:
                self._check()
                while self._read_chunk():
                    while self._busy.is_set():
                        time.sleep(0.01)
                self._whole = True
        except Exception as error:  # raised to the caller
            self._error = error

    def _check(self) -> None:
        """Start over if the last known step has changed: the run went back and repeated it, or is another run."""
        if not self._table.n:
            return
        with Run(self.path)._open() as db:
            row = db.execute("select checksum from steps where step = ?", (int(self._table.step[self._table.n - 1]),))
            if row.fetchone() != self._mark:
                with self._lock:
                    self._table, self._version, self._whole = _Table(), next(_versions), False

    def _read_chunk(self) -> bool:
        run, after = Run(self.path), int(self._table.step[self._table.n - 1]) if self._table.n else -1
        with run._open() as db:
            rows = list(read_rows(db, "steps", "where step > ? order by step limit ?", (after, CHUNK)))
            last = rows[-1][0] if rows else after
            mark = db.execute("select checksum from steps where step = ?", (last,)).fetchone()
        parsed = [(row[0], row[1], row[2], run._parse(f"step {row[0]}", row[3], dict)) for row in rows]
        with self._lock:
            for row in parsed:
                self._table.add(*row)
            self._mark = mark
        return len(rows) == CHUNK

    def _sample(self) -> Steps:
        run, table = Run(self.path), _Table()
        with run._open() as db:
            low, high = db.execute("select min(step), max(step) from steps").fetchone()
            wanted = sorted({*np.linspace(low or 0, high or 0, SAMPLE).astype(int).tolist()})
            rows = list(read_rows(db, "steps", f"where step in ({', '.join('?' * len(wanted))}) order by step", wanted))
        for row in rows:
            table.add(row[0], row[1], row[2], run._parse(f"step {row[0]}", row[3], dict))
        return table.view(False, -1 if high is None else int(high), 0)


class Numbers:
    """The runs that were viewed last."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept, self._known, self._lock = kept, OrderedDict[Path, Known](), threading.Lock()

    def of(self, path: Path) -> Known:
        with self._lock:
            found = self._known.setdefault(path, Known(path))
            self._known.move_to_end(path)
            while len(self._known) > self._kept:
                self._known.popitem(last=False)
            return found

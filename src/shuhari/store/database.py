"""Store: the one writer of a run directory. A step is one transaction; resuming trusts it and drops what is newer.

Order: write the checkpoint, flush, rename; then the transaction that names it; then remove the checkpoints that are no
longer kept. So at any moment the cursor names a whole checkpoint, and a row without one is a step that a resumed run
redoes. An existing run is only read until something is written: an error that refuses to resume it has changed nothing.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from shuhari.store import rollouts, schema, sets
from shuhari.store.damage import check, refuse_lost
from shuhari.store.files import (
    Lock,
    StoreError,
    Trail,
    Watch,
    make_run_folder,
    replace_file,
    sync_directory,
    translate_errors,
)
from shuhari.store.kept import Checkpoint, Kept
from shuhari.store.linked import claim, is_linked
from shuhari.store.restore import load_tree
from shuhari.store.rows import DERIVED, read_cursor, read_fact, read_rows, write_rows


class Store:
    """The writer of a run, made by `Store.open`, for one thread at a time; also a context manager.

    `cursor`: {step, checkpoint, stage, wall} of the last checkpoint, or None. `step`: the last committed step, -1
    before the first. `seconds`: duration of the last commit with a checkpoint, for a caller that spaces them by cost.
    """

    def __init__(self, path: Path, lock: Lock, keep: int, best: str | None, format: int) -> None:
        self.path = path
        self.cursor: dict[str, Any] | None = None
        self.step = -1
        self.seconds = 0.0
        self.first: list[Callable[[], None]] = []  # called when something is first written into a run that was there
        self._saved = -math.inf  # when the last checkpoint was done
        self._lock, self._format = lock, format
        self._sums: sets.Sums | None = None  # of the tables as they were read
        self._watch: Watch | None = None  # from the first that is written on
        self._trail: Trail | None = None  # of a run that is new
        self._linked: Lock | None = None  # of the folder behind a link in the place of the checkpoints
        self._kept = Kept(path / "checkpoints", keep, best)
        self._db: sqlite3.Connection

    @classmethod
    def open(cls, path: str | Path, *, format: int = schema.FORMAT, keep: int = 2, best: str | None = None) -> Store:
        """Open or make the run at `path`. The first write drops everything that is newer than its cursor.

        keep: number of last checkpoints to keep, at least 1; best: a metric whose highest checkpoint is kept too.
        LockedError if another process writes the run; StoreError for a newer format, a full disk, a foreign file;
        DamageError if its content is not what was written.
        """
        if keep < 1:
            raise ValueError(f"keep is {keep}: expected at least 1 checkpoint")
        path = Path(path)
        there = (path / schema.FILE).exists()
        trail = None if there else Trail(path)
        with translate_errors(f"open the run {path}"):
            if not there:
                refuse_lost(path)
                make_run_folder(path)
            store = cls(path, lock := Lock(path), keep, best, format)
            try:
                if there:
                    store._read()
                else:
                    store._begin()
                    store._trail = trail
            except BaseException:
                with suppress(AttributeError):
                    store._db.close()
                lock.release()
                raise
        return store

    def load(self, step: int | None = None) -> Any:
        """Return the tree of the cursor's checkpoint, or of a kept one at an earlier `step`; None if there is none yet.
        CheckpointError names what is damaged and the checkpoints that are left."""
        if self.cursor is None and step is None:
            return None
        return load_tree(self.path, self._db, self._kept.rings, step)

    def commit(
        self,
        step: int,
        *,
        stage: str = "",
        wall: float = 0.0,
        metrics: Mapping[str, Any],
        tree: Any = None,
        rollouts: Iterable[Mapping[str, Any]] = (),
        events: Iterable[tuple[str, Any]] = (),
        problems: Iterable[tuple[str, str, int, int]] = (),
        pin: bool = False,
    ) -> None:
        """Store one step, whole or not at all; StoreError if the disk or the database refuses.

        tree: the checkpoint, None for a step without one; it moves the cursor. wall: seconds since the run began.
        rollouts: mappings of a `group` (its key) and anything that the codec takes; `task`, `problem`, `why` and
        `score` are indexed. events: (kind, JSON). problems: (task, id, samples graded, how many of them were right),
        each problem once. pin: keep this checkpoint for good. Committing the last step again replaces its metrics (a
        save after the fact).
        """
        if step < self.step:
            raise ValueError(f"step {step} after step {self.step}: steps are committed in order")
        started = time.perf_counter()
        new: Checkpoint | None = None
        with self._writing(f"commit step {step} of {self.path}"):
            kept = self._kept.all
            try:
                if tree is not None:
                    new = self._kept.write(step, tree, metrics, pin)
                    kept = self._kept.choose(new)
                self._write_step(step, stage, wall, metrics, rollouts, events, problems, new, kept)
                self.step = step
                if new is not None:
                    self.cursor = {"step": step, "checkpoint": new.name, "stage": stage, "wall": wall}
                    self._kept.settle(kept)
                    self._saved = time.perf_counter()
                    self.seconds = self._saved - started
            except BaseException:
                self._undo()
                raise

    def is_due(self, step: int, every: int, share: float = 0.05) -> bool:
        """Whether a checkpoint is due: each `every` steps; 0: if it would cost at most this share of the time."""
        return step % every == 0 if every else (time.perf_counter() - self._saved) * share >= self.seconds

    def set(self, **values: Any) -> None:
        """Store facts about the whole run, as JSON: `total` (steps), `complete`, versions."""
        with self._writing(f"write to {self.path}"), schema.change(self._db):
            write_rows(self._db, "meta", [(key, schema.to_text(value, key)) for key, value in values.items()])

    def get(self, key: str, default: Any = None) -> Any:
        """Return a fact that `set` stored."""
        return read_fact(self._db, key, default)

    def rate(self, task: str, problem: str) -> float:
        """Return the share of a problem's samples that were right when any was last graded; NaN if none was."""
        where = "where task = ? and problem = ? and asked > 0 and step <= ? order by step desc limit 1"
        row = next(read_rows(self._db, "problems", where, (task, problem, self.step)), None)
        return math.nan if row is None else row[4] / row[3]

    def note(self, kind: str, data: Any) -> None:
        """Store an event outside of a step, at the last stored step."""
        with self._writing(f"write to {self.path}"), schema.change(self._db):
            write_rows(self._db, "events", [_make_event(self.step, kind, data)])

    def write_text(self, name: str, text: str) -> None:
        """Write a file of the run (recipe.toml, summary.json) as a whole."""
        with self._writing(f"write {self.path / name}"):
            replace_file(self.path / name, [text.encode()])
            sync_directory(self.path)

    def close(self, error: BaseException | None = None) -> None:
        """Close the run; safe to call twice. After an error the run is marked as failed, if it had been written to;
        files made for a new run that made no step are removed."""
        if isinstance(error, Exception) and self._lock.file is not None and self._watch is not None and self.step >= 0:
            with suppress(StoreError):
                self.set(failed=f"{type(error).__name__}: {error}"[:1000])
        with suppress(sqlite3.Error):  # a full disk: the log stays beside the database, and counts
            self._db.close()
        if error is not None and self._trail is not None and self.step < 0:
            files = ("recipe.toml", "data.json", *schema.FILES, Lock.NAME)  # the database late: it says whose they are
            needs = self.path / "needs"
            copies = sorted(needs.rglob("*"), reverse=True) if self._trail.is_new(needs) else ()
            folders = [] if is_linked(self.path) else [self._kept.rings.root, self._kept.folder]
            own = [*folders, *copies, *(self.path / n for n in (*files, "needs"))]
            self._trail.remove(own)
        self._trail = None
        if self._linked is not None:
            self._linked.release()
        self._lock.release()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(error)

    # ------------------------------------------------------------------ inside a commit

    def _write_step(
        self,
        step: int,
        stage: str,
        wall: float,
        metrics: Mapping[str, Any],
        groups: Iterable[Mapping[str, Any]],
        events: Iterable[tuple[str, Any]],
        problems: Iterable[tuple[str, str, int, int]],
        new: Checkpoint | None,
        kept: list[Checkpoint],
    ) -> None:
        text = schema.to_text(dict(metrics), "metrics")
        payloads = rollouts.make_rows(step, groups)
        facts = [_make_event(step, kind, data) for kind, data in events]
        counts = [(step, *row) for row in problems]
        db = self._db
        if new is not None:
            db.execute("pragma synchronous = full")
        with schema.change(db):
            rollouts.write(db, step, payloads, again=step == self.step)
            for table, rows in (("steps", [(step, stage, wall, text)]), ("events", facts), ("problems", counts)):
                write_rows(db, table, rows)
            if new is not None:
                write_rows(db, "checkpoints", [(step, new.name, new.pinned, new.score)])
                gone = (
                    {k.name for k in self._kept.all}
                    - {k.name for k in kept}
                )
                db.executemany("delete from checkpoints where name = ?", [(name,) for name in gone])
                db.execute("delete from cursor")
                write_rows(db, "cursor", [(step, new.name, stage, wall)])
        if new is not None:
            db.execute("pragma synchronous = normal")

    def _undo(self) -> None:
        """Undo a failed commit. One that was interrupted at its very end may have happened: the database decides."""
        with suppress(sqlite3.Error, OSError):
            if self._db.in_transaction:
                self._db.execute("rollback")
            self._db.execute("pragma synchronous = normal")
            before, self.cursor = self.cursor, read_cursor(self._db)
            self._kept.rings.settle(keep=self.cursor != before)
            self.step = self._read_last_step()
            self._kept.read(self._db)

    # ------------------------------------------------------------------ on opening, and before the first write

    def _read(self) -> None:
        """Open an existing run for reading: nothing of it is changed, except by SQLite beside the database."""
        refuse_lost(self.path)
        self._db = schema.connect(self.path, self._format, math.inf)
        self._sums = check(self.path, self._db)
        self.cursor = read_cursor(self._db)
        self.step = -1 if self.cursor is None else self.cursor["step"]

    def _begin(self) -> None:
        """Open for writing, and drop what is newer than the cursor."""
        self._kept.folder.mkdir(exist_ok=True)  # there may be none before the first
        db = schema.create(self.path, self._format, self._sums)
        with suppress(AttributeError):
            self._db.close()
        self._db = db
        self._lock.sign()
        self._linked = self._linked or claim(self.path, db)
        self._drop_newer()
        log = self.path / f"{schema.FILE}-wal"  # SQLite makes it, and lets go of it when the last connection closes
        self._watch = Watch([self.path / schema.FILE, self._lock.path, self._kept.folder, *[log] * log.exists()])
        while self.first:
            self.first.pop(0)()

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        with translate_errors(what):
            if self._watch is None:
                self._begin()
            else:
                self._watch.check()
            yield

    def _read_last_step(self) -> int:
        return int(self._db.execute("select coalesce(max(step), -1) from steps").fetchone()[0])

    def _drop_newer(self) -> None:
        self.cursor = read_cursor(self._db)
        after = -1 if self.cursor is None else self.cursor["step"]
        tables = ("steps", "rollouts", *DERIVED, "events", "problems", "checkpoints")
        some = " or ".join(f"exists (select 1 from {table} where step > :after)" for table in tables)
        newer = f"select {some} or exists (select 1 from meta where key = 'failed')"
        if self._db.execute(newer, {"after": after}).fetchone()[0]:
            with schema.change(self._db):
                for table in tables:
                    self._db.execute(f"delete from {table} where step > ?", (after,))
                self._db.execute("delete from meta where key = 'failed'")
        self.step = after
        self._kept.read(self._db)


def _make_event(step: int, kind: str, data: Any) -> tuple[Any, ...]:
    return step, kind, schema.to_text(data, f"the event {kind!r}")

"""The database of a run, `run.sqlite`: its tables, and how it is opened for writing and for reading. No torch.

One transaction a step. `synchronous=NORMAL`: a killed process loses nothing, a loss of power at most the last steps
without a checkpoint. A transaction that names a checkpoint is flushed (FULL), since older ones are removed after it.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shuhari.store import finding, sets
from shuhari.store.files import DamageError, NewerError, StoreError, describe_kind
from shuhari.store.rows import (
    CHECKED,
    COLUMNS,
    COUNTED,
    DERIVED,
    LIMIT,
    NUMBERED,
    fill_checksums,
    limit_time,
    list_columns,
    sum_rows,
    write_rows,
    write_sums,
)

# 1: without checksums, what names and finds rollouts, and the counts of problems; 2: with checksums (`crc`) of a few
# columns, which are not read any more; 3: with checksums of all that a row says, but in rows taken over from 1 and 2;
# 4: every row has one; 5: with what finds groups by their numbers and words; 6: with what tables hold as sets
FORMAT = 6
FILE = "run.sqlite"
FILES = (FILE, f"{FILE}-wal", f"{FILE}-shm")
_TABLES = f"""{finding.TABLES}
create table if not exists meta (key text primary key, value text not null, checksum integer) without rowid;
create table if not exists steps (
  step integer primary key, stage text not null, wall real not null, metrics text not null,
  checksum integer
);
create table if not exists rollouts (
  id integer primary key, step integer not null, name text not null, payload blob not null,
  task text, problem text, why text, score real, checksum integer
);
create table if not exists events (
  id integer primary key, step integer not null, kind text not null, data text not null, checksum integer
);
create table if not exists problems (
  step integer not null, task text not null, problem text not null, asked integer not null, solved integer not null,
  checksum integer, primary key (step, task, problem)
) without rowid;
create table if not exists checkpoints (
  name text primary key, step integer not null, pinned integer not null, score real, checksum integer
);
create table if not exists cursor (
  id integer primary key check (id = 1), step integer not null, checkpoint text not null,
  stage text not null, wall real not null, checksum integer
);
"""
_LATER = {  # columns that a run of an older format lacks; empty where it was made by that
    **{table: {"checksum": "integer"} for table in COLUMNS},
    "rollouts": {"task": "text", "problem": "text", "why": "text", "score": "real", "checksum": "integer"},
}
_INDICES = f"""{finding.INDICES}
create index if not exists rollouts_step on rollouts (step);
create index if not exists rollouts_named on rollouts (problem, task, step);
create index if not exists events_kind on events (kind, step);
create index if not exists problems_name on problems (task, problem, step);
"""
INDICES = frozenset(re.findall(r"if not exists (\w+) on", _INDICES))
BASE = frozenset(COLUMNS) - {"problems", *DERIVED}  # the tables of every format


def create(run: Path, format: int, sums: sets.Sums | None = None) -> sqlite3.Connection:
    """Open the database of a run for its one writer, made if missing. Transactions are begun by hand. sums: those of
    its tables, if they have been read."""
    path = run / FILE
    fresh = not path.exists()
    db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
    try:
        if not fresh and sums is None:  # else it was checked as they were read
            check_format(db, run, format)
        db.execute("pragma journal_mode = wal")
        db.execute("pragma synchronous = normal")
        missing = "" if fresh else _write_upgrade(db)
        db.executescript(f"begin;{_TABLES}{missing}{_INDICES}")
        known = db.execute("select value from meta where key = 'format'").fetchone()
        old = 0 if known is None else int(known[0])
        if old < CHECKED:
            fill_checksums(db)
            sums = None
        if old < finding.FORMAT:
            finding.rebuild(db)
        sets.watch(db, {t: sums[t] if sums else sum_rows(db, t, {}) for t in COUNTED}, NUMBERED)
        if old < format:
            write_rows(db, "meta", [("format", str(format))])
            write_sums(db)
        db.execute("commit")
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def change(db: sqlite3.Connection) -> Iterator[None]:
    """Run a transaction of a run's writer: all of it or nothing, the sums of tables included."""
    db.execute("begin immediate")
    try:
        yield
        write_sums(db)
        db.execute("commit")
    except BaseException:
        with suppress(sqlite3.Error):
            if db.in_transaction:
                db.execute("rollback")
        raise


def write_fact(db: sqlite3.Connection, key: str, value: Any) -> None:
    """Store a fact about the whole run, in a transaction of its own."""
    with change(db):
        write_rows(db, "meta", [(key, to_text(value, key))])


def _write_upgrade(db: sqlite3.Connection) -> str:
    """Return the SQL that adds the columns that the tables of an older format lack."""
    out = ""
    for table, columns in _LATER.items():
        there = list_columns(db, table)
        new = {c: kind for c, kind in columns.items() if there and c not in there}
        out += "".join(f"alter table {table} add column {c} {kind};" for c, kind in new.items())
    return out


def connect(run: Path, format: int = FORMAT, limit: float = LIMIT) -> sqlite3.Connection:
    """Open the database of a run, read-only; works while the run is being written. StoreError if there is none, or if
    it is of a newer format or not of a run. Reading ends in an error after `limit` seconds in all."""
    path = run / FILE
    for name in FILES:  # SQLite would wait for ever for the other end of a pipe
        if (kind := describe_kind(run / name)) not in ("", "file"):
            hint = f"`shuhari doctor {run}` says what is whole"
            raise DamageError(f"{run / name} is a {kind}: expected a file", hint)
    if not path.exists():
        raise StoreError(f"{run} is not a run: it has no {FILE}")
    log = Path(f"{path}-wal")
    if not path.stat().st_size and log.exists() and log.stat().st_size:  # SQLite would remove the log
        raise DamageError(f"{path} is empty, though its log is not", f"`shuhari doctor {run}` says what can be saved")
    uri = path.absolute().as_uri()
    try:
        return _open(f"{uri}?mode=ro", run, format, limit)
    except sqlite3.OperationalError:
        if log.exists():
            raise
        # a directory that we may not write to: SQLite cannot make its shared memory there, and needs none
        return _open(f"{uri}?immutable=1", run, format, limit)


def _open(uri: str, run: Path, format: int, limit: float) -> sqlite3.Connection:
    db = sqlite3.connect(uri, uri=True, timeout=min(10, limit), isolation_level=None, check_same_thread=False)
    limit_time(db, limit)
    try:
        check_format(db, run, format)
    except BaseException:
        db.close()
        raise
    return db


def check_format(db: sqlite3.Connection, run: Path, format: int) -> None:
    """Raise StoreError if the run was written by a newer version, or the file is not the database of a run: it may
    contain only what this module makes, as a view or a trigger would be a program of whoever made the file."""

    def refuse(why: str) -> StoreError:
        return StoreError(f"{run / FILE}: not the database of a run ({why}); move it away to start afresh")

    try:
        found = db.execute("select type, name, tbl_name from sqlite_master").fetchall()
        for kind, name, table in found:
            if kind == "index" and (name in INDICES or name.startswith("sqlite_autoindex_")):
                continue
            if kind != "table" or name not in COLUMNS:
                raise refuse(f"it has a {kind} {name!r:.40}, which no run has")
            odd = [row for row in db.execute(f"pragma table_xinfo({table})") if row[6]]  # hidden, or computed
            if odd:
                raise refuse(f"the column {odd[0][1]!r:.40} of its {table} is computed")
        if not found:
            return  # killed before its first transaction: still empty
        if missing := BASE - {name for _, name, _ in found}:
            raise refuse(f"no such table: {min(missing)}")
        row = db.execute("select value from meta where key = 'format'").fetchone()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # a damaged name is no text
        if isinstance(error, sqlite3.OperationalError):
            raise
        raise refuse(str(error)) from error
    if row is not None and not str(row[0]).isdecimal():
        raise refuse(f"its format is {row[0]!r:.40}")
    if row is not None and int(row[0]) > format:
        raise NewerError(f"{run} has format {row[0]}; this version reads up to {format}: upgrade shuhari")


def to_text(value: Any, what: str) -> str:
    """Return JSON of numbers, text, lists and mappings; numpy and torch numbers become plain; NaN and infinities
    stay."""

    def plain(x: Any) -> Any:
        if hasattr(x, "tolist"):  # numpy and torch
            return x.tolist()
        raise TypeError(f"{what} holds a {type(x).__name__}: expected numbers, text, lists and mappings")

    return json.dumps(value, separators=(",", ":"), default=plain)

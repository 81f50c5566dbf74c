"""The database of a run, `run.sqlite`: its tables, and how it is opened for writing and for reading. No torch.

One transaction a step. `synchronous=NORMAL`: a killed process loses nothing, a loss of power at most the last
steps without a checkpoint. A transaction that names a checkpoint is flushed (FULL), since older ones go after it.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from shuhari.store.files import StoreError
from shuhari.store.rows import COLUMNS, list_columns

# 1: without checksums, what names and finds rollouts, and the counts of problems; 2: with checksums (`crc`) of a few
# columns, which are not read any more
FORMAT = 3
FILE = "run.sqlite"
FILES = (FILE, f"{FILE}-wal", f"{FILE}-shm")
_TABLES = """
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
_INDICES = """
create index if not exists rollouts_step on rollouts (step);
create index if not exists rollouts_named on rollouts (problem, task, step);
create index if not exists events_kind on events (kind, step);
create index if not exists problems_name on problems (task, problem, step);
"""


def create(run: Path, format: int) -> sqlite3.Connection:
    """The database of a run for its one writer, made if missing. Transactions are begun by hand."""
    path = run / FILE
    fresh = not path.exists()
    db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
    try:
        if not fresh:
            check_format(db, run, format)
        db.execute("pragma journal_mode = wal")
        db.execute("pragma synchronous = normal")
        missing = "" if fresh else _write_upgrade(db)
        db.executescript(f"begin;{_TABLES}{missing}{_INDICES}"
                         f"insert into meta (key, value) values ('format', '{format:d}') on conflict (key) do update "
                         f"set value = excluded.value where cast(value as integer) < {format:d};commit;")  # fmt: skip
    except BaseException:
        db.close()
        raise
    return db


def _write_upgrade(db: sqlite3.Connection) -> str:
    """What makes the tables of an older format those of this one: the columns that they lack."""
    out = ""
    for table, columns in _LATER.items():
        there = list_columns(db, table)
        new = {c: kind for c, kind in columns.items() if there and c not in there}
        out += "".join(f"alter table {table} add column {c} {kind};" for c, kind in new.items())
    return out


def connect(run: Path, format: int = FORMAT) -> sqlite3.Connection:
    """The database of a run, read-only; works while the run is being written. StoreError where there is none."""
    path = run / FILE
    if not path.is_file():
        raise StoreError(f"{run} is not a run: it has no {FILE}")
    uri = path.absolute().as_uri()
    db = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=10, isolation_level=None, check_same_thread=False)
    try:
        check_format(db, run, format)
    except sqlite3.OperationalError:
        db.close()
        if Path(f"{path}-wal").exists():
            raise
        # a directory that we may not write to: SQLite cannot make its shared memory there, and needs none
        db = sqlite3.connect(f"{uri}?immutable=1", uri=True, isolation_level=None, check_same_thread=False)
        check_format(db, run, format)
    return db


def check_format(db: sqlite3.Connection, run: Path, format: int) -> None:
    """StoreError where the run was written by a newer version, or the file is no database of a run."""
    try:
        row = db.execute("select value from meta where key = 'format'").fetchone()
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "no such table" not in str(error):
            raise
        if "no such table" in str(error) and not db.execute("select count(*) from sqlite_master").fetchone()[0]:
            return  # killed before its first transaction: still empty
        raise StoreError(f"{run / FILE}: not the database of a run ({error}); move it away to start afresh") from error
    kind = db.execute("select type from sqlite_master where name = 'steps'").fetchone()
    if kind is not None and kind[0] != "table":
        raise StoreError(f"{run / FILE}: not the database of a run (its steps are a {kind[0]}); move it away")
    if row is not None and not row[0].isdecimal():
        raise StoreError(f"{run / FILE}: not the database of a run (its format is {row[0]!r:.40}); move it away")
    if row is not None and int(row[0]) > format:
        raise StoreError(f"{run} has format {row[0]}; this version reads up to {format}: upgrade shuhari")


def to_text(value: Any, what: str) -> str:
    """JSON of numbers, text, lists and mappings; numpy and torch numbers become plain; NaN and infinities stay."""

    def plain(x: Any) -> Any:
        if hasattr(x, "tolist"):  # numpy and torch
            return x.tolist()
        raise TypeError(f"{what} holds a {type(x).__name__}: expected numbers, text, lists and mappings")

    return json.dumps(value, separators=(",", ":"), default=plain)

"""Rows of a run's database: written with a checksum of all their values, which is verified on reading. No torch."""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shuhari.store import sets, sizes
from shuhari.store.files import DamageError, StoreError
from shuhari.store.names import read_name

COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType({  # table -> what a row says, beside a number of its own
    "meta": ("key", "value"),
    "steps": ("step", "stage", "wall", "metrics"),
    "rollouts": ("step", "name", "payload", "task", "problem", "why", "score"),
    "events": ("step", "kind", "data"),
    "groups": ("rollout", "step", "score", "worst", "best", "length", "status", "samples", "replies", "words"),
    "words": ("step", "word", "rollouts"),
    "problems": ("step", "task", "problem", "asked", "solved"),
    "checkpoints": ("step", "name", "pinned", "score"),
    "cursor": ("step", "checkpoint", "stage", "wall"),
})  # fmt: skip
DERIVED = ("groups", "words")  # tables that follow from that of rollouts, since format 5
_KEYS = {  # of tables without a number for each row
    "meta": ("key",), "problems": ("step", "task", "problem"), "words": ("word", "step"),
}  # fmt: skip
NUMBERED = ("rollouts", "events")  # tables whose rows have an id, which says their order
COUNTED = tuple(table for table in COLUMNS if table not in DERIVED)  # tables that `sets` has
_CALLED = ("checkpoints", "cursor")  # tables whose rows name a checkpoint, behind its step
CHECKED = 4  # the format from which on every row has a checksum
LIMIT = 60.0  # seconds of reading over one connection
_NAMES = {  # what an error calls a row, before its first column
    "meta": "the fact", "steps": "step", "rollouts": "a rollout of step", "events": "an event of step",
    "groups": "what finds the group", "words": "a word of step",
    "problems": "a count of problems of step", "checkpoints": "the entry of the checkpoint of step",
    "cursor": "the cursor at step",
}  # fmt: skip


def write_rows(db: sqlite3.Connection, table: str, rows: Iterable[Sequence[Any]], counted: bool = True) -> None:
    """Insert rows, each as its table's `COLUMNS`, or replace rows with the same primary key. counted: whether `sets`
    counts them, for the tables that it has."""
    new: list[tuple[Any, ...]] = [(*row, compute_checksum(row)) for row in rows]
    if not new:
        return
    names, terms = [*COLUMNS[table], "checksum"], [row[-1] for row in new]
    if table in NUMBERED:
        (first,) = db.execute(f"select coalesce(max(id), 0) + 1 from {table}").fetchone()  # as SQLite would go on
        new = [(i, *row) for i, row in enumerate(new, first)]
        names, terms = ["id", *names], [sets.compute_term(row[-1], row[0]) for row in new]
    db.executemany(f"insert or replace into {table} ({', '.join(names)}) values ({', '.join('?' * len(names))})", new)
    if counted and table in COUNTED:
        sets.add(db, table, terms)


def write_sums(db: sqlite3.Connection) -> None:
    """Store the sums of `sets` over a writer's connection, at the end of its transaction."""
    write_rows(db, "meta", [(sets.FACT, sets.to_text(db))], counted=False)


def read_rows(
    db: sqlite3.Connection, table: str, rest: str = "", args: Sequence[Any] = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table, each as its `COLUMNS`, None if the format of the run lacks one; nothing if it lacks
    the table. rest: the rest of the query, after the table. StoreError for a damaged row; rows of formats before
    `CHECKED` may have no checksum."""
    for row, _, _ in _select(db, table, rest, args):
        yield row


def _select(
    db: sqlite3.Connection, table: str, rest: str = "", args: Sequence[Any] = ()
) -> Iterator[tuple[tuple[Any, ...], int | None, int]]:
    """Yield (row, checksum, id or 0) of `read_rows`."""
    names, called, number = list_selected(db, table), table in _CALLED, "id" if table in NUMBERED else "0"
    for *row, crc, at in db.execute(f"select {', '.join(names)}, {number} from {table} {rest}", args) if names else ():
        if called or crc != compute_checksum(row):
            _check_row(db, table, row, crc)
        yield tuple(row), crc, at


def _check_row(db: sqlite3.Connection, table: str, row: Sequence[Any], crc: int | None) -> None:
    """Raise StoreError for a row that is not what was written, or that names something other than a checkpoint of its
    step."""
    why = ""
    if crc != compute_checksum(row) and not (crc is None and is_unchecked(db)):
        why = f"its checksum is {'missing' if crc is None else 'another'}"
    elif table in _CALLED:
        why = _check_name(*row[:2])
    if why:
        raise describe_damage(db, f"{_NAMES[table]} {row[0]!s:.40} is damaged ({why})")


def _check_name(step: Any, name: Any) -> str:
    """Return what is wrong with a checkpoint's name as stored in a row; "" if nothing is. Checked because the name
    becomes part of a path."""
    try:
        return "" if read_name(name)[0] == step else f"it names {name!r}"
    except DamageError as error:
        return str(error)


def sum_rows(db: sqlite3.Connection, table: str, count: dict[str, int]) -> tuple[int, int]:
    """Read all of a table as `read_rows` does, and return (rows, digest) as in `sets`. `count` gets the number of rows,
    also if a damaged one ends the reading."""
    count[table] = n = digest = 0
    try:
        for row, crc, at in _select(db, table):
            n += 1
            digest += (crc or 0) * (1 + at % sets.PRIME) if at > 0 else crc or 0
            if row[0] == sets.FACT:  # which says these sums
                n, digest = n - 1, digest - (crc or 0)
    finally:
        count[table] = n
    return n, digest % sets.SIZE


def describe_damage(db: sqlite3.Connection, what: str) -> StoreError:
    """Return the error for what is not as it was written."""
    file = find_file(db)
    return StoreError(f"{file}: {what}", f"`shuhari doctor {file.parent}` says what is whole, and can repair it")


def limit_time(db: sqlite3.Connection, seconds: float = LIMIT) -> None:
    """Make any work of a connection end in an error after so many seconds from now on."""
    end = time.monotonic() + seconds
    db.set_progress_handler(lambda: time.monotonic() > end, 1_000_000)  # about every 10 ms of work inside SQLite


def is_unchecked(db: sqlite3.Connection) -> bool:
    """Whether the run is of a format whose rows may have no checksum."""
    row = db.execute("select value from meta where key = 'format'").fetchone()
    return row is not None and str(row[0]).isdecimal() and int(row[0]) < CHECKED


def list_keys(table: str) -> tuple[str, ...]:
    """Return the columns that number, or name, the rows of a table."""
    return _KEYS.get(table, ("rowid",))


def fill_checksums(db: sqlite3.Connection) -> None:
    """Add a checksum to the rows that have none, inside the caller's transaction."""
    for table in COLUMNS:
        keys, names = list_keys(table), list_selected(db, table)
        where = " and ".join(f"{key} = ?" for key in keys)
        found = db.execute(f"select {', '.join((*keys, *names))} from {table} where checksum is null")
        while some := found.fetchmany(1000):
            new = [(compute_checksum(row[len(keys) : -1]), *row[: len(keys)]) for row in some]
            db.executemany(f"update {table} set checksum = ? where {where}", new)


def list_selected(db: sqlite3.Connection, table: str) -> list[str]:
    """Return what a query selects of a table: its `COLUMNS` and the checksum, `null` for one that the format of the run
    lacks; nothing if it lacks the table."""
    there = list_columns(db, table)
    return [name if name in there else "null" for name in (*COLUMNS[table], "checksum")] if there else []


def read_fact(db: sqlite3.Connection, key: str, default: Any = None) -> Any:
    """Return a fact about the whole run, or `default` if there is none."""
    rows = read_rows(db, "meta", "where key = ?", (key,))
    return next((parse(find_file(db), f"the fact {key}", text) for _, text in rows), default)


def parse(file: Path, what: str, text: str | bytes, kind: type = object) -> Any:
    """Return the value of a row's JSON. StoreError, which names the database and what was read, if it is not JSON, or
    not of `kind`."""
    try:
        found = sizes.read_json(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"{file}: {what} is damaged ({error})") from error
    if not isinstance(found, kind):
        raise StoreError(f"{file}: {what} is damaged (it is a {type(found).__name__}, no {kind.__name__})")
    return found


def read_cursor(db: sqlite3.Connection) -> dict[str, Any] | None:
    """Return where a resumed run continues: {step, checkpoint, stage, wall}; None before the first checkpoint."""
    row = next(read_rows(db, "cursor"), None)
    return None if row is None else dict(zip(COLUMNS["cursor"], row, strict=True))


def compute_checksum(row: Iterable[str | bytes | float | None]) -> int:
    """Return the checksum of all values of a row, each with its kind and length, so that none can pass for a part of
    its neighbour."""
    return zlib.crc32(b"".join(map(_to_bytes, row)))


def _to_bytes(value: str | bytes | float | None) -> bytes:
    """Return a value with its kind and length; numbers are alike whichever kind a column makes of them."""
    if value is None:
        return b"n"
    if isinstance(value, str):
        text = value.encode()
        return b"t%d:%b" % (len(text), text)
    return b"b%d:%b" % (len(value), value) if isinstance(value, bytes) else b"f%r;" % float(value)


def list_columns(db: sqlite3.Connection, table: str) -> set[str]:
    """Return the columns of a table, none if there is no such table."""
    return {row[1] for row in db.execute(f"pragma table_info({table})")}


def find_file(db: sqlite3.Connection) -> Path:
    """Return the file behind a connection."""
    return Path(next(file for _, name, file in db.execute("pragma database_list") if name == "main"))

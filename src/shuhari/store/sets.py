"""Sums over the tables of a run: the number of rows of each, and a digest of them. They detect a missing row, which its
own checksum cannot. No torch.

Both are the fact `sets`, written in the transaction that changes rows. While a run is written they are held in a
temporary table of the writer's connection, which a rollback restores too: `add` counts rows as they are written,
triggers count deletions. The digest is a sum, so a row costs the same for any number of rows: its checksum, times a
number that follows from its id, if it has one, so that swapped rows are detected. Left out: `DERIVED` tables, which are
checked against the table of rollouts.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from itertools import pairwise

FACT = "sets"
FORMAT = 6  # of a run, from which on it has them
SIZE, PRIME = 2**60, 1_000_003  # digests are sums modulo the first; nothing below overflows 64 bits
Sums = Mapping[str, tuple[int, int]]  # table -> (rows, digest)


def compute_term(checksum: int, number: int) -> int:
    """Return what a row adds to the digest of its table. number: its id, 0 if it has none."""
    return checksum * (1 + abs(number) % PRIME)


def read_format(db: sqlite3.Connection) -> int:
    """Return the format of a run, 0 if it has none, as before its first transaction."""
    row = db.execute("select value from meta where key = 'format'").fetchone()
    return int(row[0]) if row is not None and str(row[0]).isdecimal() else 0


def watch(db: sqlite3.Connection, sums: Sums, numbered: Iterable[str]) -> None:
    """Keep the sums from now on, for a writer's connection, inside a transaction."""
    db.execute("pragma recursive_triggers = on")  # a row that another replaces is one that goes
    db.execute("create temp table sums (name text primary key, rows integer, digest integer) without rowid")
    db.executemany("insert into temp.sums values (?, ?, ?)", [(name, *both) for name, both in sums.items()])
    for table in sums:
        term = "old.checksum" + f" * (1 + abs(old.id % {PRIME}))" * (table in numbered)
        when = f"when old.key <> '{FACT}'" if table == "meta" else ""
        less = f"rows = rows - 1, digest = (digest - {term} + {SIZE}) % {SIZE}"
        update = f"update sums set {less} where name = '{table}'"
        db.execute(f"create temp trigger {table}_gone after delete on main.{table} {when} begin {update}; end")


def add(db: sqlite3.Connection, table: str, terms: list[int]) -> None:
    """Count rows that were written, if the connection keeps sums of the table."""
    query = f"update temp.sums set rows = rows + ?, digest = (digest + ?) % {SIZE} where name = ?"
    try:
        db.execute(query, (len(terms), sum(terms) % SIZE, table))
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise


def to_text(db: sqlite3.Connection) -> str:
    """Return the value of the fact, from the kept sums."""
    return json.dumps({name: both for name, *both in db.execute("select * from temp.sums")}, separators=(",", ":"))


def read_sums(found: object) -> dict[str, tuple[int, int]]:
    """Return the sums that the fact holds; ValueError if it is not one."""
    out = {}
    for name, both in found.items() if isinstance(found, dict) else [("", found)]:
        if not (isinstance(both, list) and len(both) == 2 and all(type(x) is int and 0 <= x < SIZE for x in both)):
            raise ValueError(f"{str(both)[:40]}: expected table -> [rows, digest]")
        out[str(name)] = (both[0], both[1])
    return out


def explain(table: str, found: tuple[int, int], written: tuple[int, int], steps: Iterable[int] = ()) -> str:
    """Describe how a table differs from the set that was written, "" if it does not. steps: for the table of steps, all
    that have a row, in order."""
    if found == written:
        return ""
    if found[0] == written[0]:
        return f"{table} are not the rows that were written (their digest is another)"
    there = sorted(steps)
    gap = next((a + 1 for a, b in pairwise(there) if b > a + 1), None)
    where = "" if gap is None else f", none of step {gap}"
    return f"{table} has {found[0]} rows, of {written[0]} that were written{where}"

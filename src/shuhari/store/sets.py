"""What the tables of a run hold as sets: how many rows each has, and a digest of them. A row has a checksum of its own,
which says nothing once it is gone. No torch.

Both are the fact `sets`, written in the transaction that changes rows. While a run is written they stand in a table of
the writer's connection alone, which a transaction that is rolled back takes back too: `add` counts rows as they are
written, triggers those that go. The digest is a sum, so a row costs the same however many there are: of its checksum,
times a number that follows from its id, if it has one, so that rows that change places are seen. Left out: `DERIVED`
tables, which are held to that of rollouts.
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
    """What a row adds to the digest of its table. number: its id, 0 where it has none."""
    return checksum * (1 + abs(number) % PRIME)


def read_format(db: sqlite3.Connection) -> int:
    """The format of a run, 0 where it does not say, as before its first transaction."""
    row = db.execute("select value from meta where key = 'format'").fetchone()
    return int(row[0]) if row is not None and str(row[0]).isdecimal() else 0


def watch(db: sqlite3.Connection, sums: Sums, numbered: Iterable[str]) -> None:
    """Keep the sums from now on, for a writer's connection, inside of a transaction."""
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
    """Count rows that were written, if sums are kept over the connection, and of the table."""
    query = f"update temp.sums set rows = rows + ?, digest = (digest + ?) % {SIZE} where name = ?"
    try:
        db.execute(query, (len(terms), sum(terms) % SIZE, table))
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise


def to_text(db: sqlite3.Connection) -> str:
    """The value of the fact, from what is kept."""
    return json.dumps({name: both for name, *both in db.execute("select * from temp.sums")}, separators=(",", ":"))


def read_sums(found: object) -> dict[str, tuple[int, int]]:
    """The sums that the fact holds; ValueError where it is none."""
    out = {}
    for name, both in found.items() if isinstance(found, dict) else [("", found)]:
        if not (isinstance(both, list) and len(both) == 2 and all(type(x) is int and 0 <= x < SIZE for x in both)):
            raise ValueError(f"{str(both)[:40]}: expected table -> [rows, digest]")
        out[str(name)] = (both[0], both[1])
    return out


def explain(table: str, found: tuple[int, int], written: tuple[int, int], steps: Iterable[int] = ()) -> str:
    """How a table is not the set that was written, "" where it is. steps: of the table of steps, all that have a row,
    in order."""
    if found == written:
        return ""
    if found[0] == written[0]:
        return f"{table} are not the rows that were written (their digest is another)"
    there = sorted(steps)
    gap = next((a + 1 for a, b in pairwise(there) if b > a + 1), None)
    where = "" if gap is None else f", none of step {gap}"
    return f"{table} has {found[0]} rows, of {written[0]} that were written{where}"

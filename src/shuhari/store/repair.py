"""Repair of a run: a new database of the whole rows, and the whole checkpoints. What is damaged is moved to
`damaged-<n>/` in the run's folder, so that nothing is destroyed.

The run then continues from its newest whole checkpoint. Later steps are made again, with the same bits; earlier rows
that are damaged or missing are lost.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from shuhari.store import checkpoint, finding, schema, sets
from shuhari.store.damage import Found, Report, inspect_run
from shuhari.store.files import DamageError, Lock, StoreError, replace_file, sync_directory, translate_errors
from shuhari.store.layout import FOLDERS
from shuhari.store.ring import RingFiles
from shuhari.store.rows import (
    COLUMNS,
    DERIVED,
    compute_checksum,
    is_unchecked,
    list_keys,
    list_selected,
    read_fact,
    write_rows,
)


def repair_run(run: Path) -> list[str]:
    """Move what is damaged aside, and put what is whole in its place; return what was done and what is lost, one
    sentence each. Nothing is done, and nothing returned, if nothing is damaged. LockedError while another process
    writes the run; DamageError if no checkpoint is whole, so that the run cannot continue."""
    with translate_errors(f"repair {run}"):
        lock = Lock(run)
        try:
            report = inspect_run(run)
            if not report.faults:
                return []
            aside = next(p for i in range(1, 10**6) if not (p := run / f"damaged-{i}").exists())
            with _set_aside(run, report.odd, aside):
                report = inspect_run(run) if report.odd else report
                if not report.repairable:
                    raise DamageError(f"{run}: no checkpoint of it is whole, so there is nothing to go on from: "
                                      "nothing was changed")  # fmt: skip
                return _rebuild(run, report, aside) if report.faults else [_describe_aside(aside)]
        finally:
            lock.release()


@contextmanager
def _set_aside(run: Path, odd: Iterable[str], aside: Path) -> Iterator[None]:
    """Move what is not of its kind to `aside`, and back if the work inside fails."""
    moved = list[str]()
    try:
        for name in odd:
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            os.rename(run / name, aside / name)
            moved.append(name)
        yield
    except BaseException:
        with suppress(OSError):
            for name in moved:
                if not os.path.lexists(run / name):
                    os.rename(aside / name, run / name)
            for folder in (*(aside / name for name in FOLDERS), aside):
                if folder.is_dir():
                    folder.rmdir()
        raise


def _describe_aside(aside: Path) -> str:
    return f"what was damaged is set aside in {aside}"


def _rebuild(run: Path, report: Report, aside: Path) -> list[str]:
    fresh = run / ".tmp-repair"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    goal, at = report.goal, -1 if report.goal is None else report.goal.step
    with closing(schema.create(fresh, schema.FORMAT)) as new:
        with schema.change(new):
            lost = _copy(run, new)
            newest = new.execute("select coalesce(max(step), -1) from steps").fetchone()[0]
            if at > newest:
                lost.append(f"the metrics and rollouts of steps {newest + 1} to {at}")
            if newest > at or "summary.json" in report.files:
                new.execute("delete from meta where key = 'complete'")  # it ends, and sums up, anew
            _name_checkpoints(run, new, report.checkpoints, goal)
        text = new.execute("select value from meta where key = 'recipe'").fetchone()
        new.execute("pragma journal_mode = delete")  # all of it in one file, which is renamed as a whole
    aside.mkdir(exist_ok=True)
    for name in (*schema.FILES, *report.files):
        if (run / name).exists() and not os.path.lexists(aside / name):  # another, odd one is there already
            os.rename(run / name, aside / name) if name in report.files else _link(run / name, aside / name)
    for name in schema.FILES[1:]:  # first the log, which would be read into any database beside it
        (run / name).unlink(missing_ok=True)
    os.replace(fresh / schema.FILE, run / schema.FILE)
    shutil.rmtree(fresh, ignore_errors=True)
    for found in report.checkpoints:
        if found.fault:
            os.rename(run / "checkpoints" / found.name, aside / found.name)
    if "recipe.toml" in report.files and text is not None:
        replace_file(run / "recipe.toml", [json.loads(text[0]).encode()])
    sync_directory(run)
    if goal is None:
        goes_on = "the run begins again, as it has no checkpoint"
    else:
        again = f"; steps {at + 1} to {newest} are made again" if newest > at else ""
        goes_on = f"the run goes on from step {at}, whose checkpoint is whole{again}"
    return [*(f"lost: {what}" for what in lost), goes_on, _describe_aside(aside)]


def _link(old: Path, new: Path) -> None:
    """Give a file that is about to be replaced a second name; copy it if the disk has no hard links."""
    try:
        os.link(old, new)
    except OSError:
        if old.is_file():
            shutil.copy2(old, new)


def _copy(run: Path, new: sqlite3.Connection) -> list[str]:
    """Copy the rows whose checksum holds; return what is lost."""
    lost: list[str] = []
    try:
        db = schema.connect(run, limit=float("inf"))
    except (StoreError, sqlite3.Error):
        return ["every row, as the database cannot be read"]
    with closing(db):
        for table in COLUMNS:
            rows, bad, whole = read_leniently(db, table)
            if table not in ("checkpoints", "cursor", *DERIVED):
                own = ("format", sets.FACT)  # which the new database has of its own
                write_rows(new, table, (row for row in rows if table != "meta" or row[0] not in own))
                lost += _count_gone(db, table, len(rows) + bad) if whole else []
                lost += [f"{bad} row{'s' * (bad > 1)} of {table}"] if bad else []
                lost += [f"rows of {table} on a damaged page of the database"] if not whole else []
    finding.rebuild(new)
    return lost


def _count_gone(db: sqlite3.Connection, table: str, there: int) -> list[str]:
    """Return how many rows of a table were written but are missing, as a sentence."""
    with suppress(StoreError, sqlite3.Error, ValueError, KeyError):
        gone = sets.read_sums(read_fact(db, sets.FACT))[table][0] - there + (table == "meta")
        return [f"{gone} row{'s' * (gone > 1)} of {table} that {'is' if gone == 1 else 'are'} gone"] if gone > 0 else []
    return []


def read_leniently(db: sqlite3.Connection, table: str) -> tuple[list[Sequence[Any]], int, bool]:
    """Return (the rows of a table whose checksum holds, how many have one that does not, whether all could be reached).
    An unreadable page ends the reading, which then continues from the table's other end."""
    if not (names := list_selected(db, table)):
        return [], 0, True
    keys = list_keys(table)
    found: list[list[tuple[Any, ...]]] = [[], []]
    whole, seen = True, set[Any]()
    for way, order in enumerate(("asc", "desc")):
        query = f"select {', '.join((*keys, *names))} from {table} order by {', '.join(f'{k} {order}' for k in keys)}"
        try:
            for row in db.execute(query):
                if row[: len(keys)] in seen:
                    break  # where the other way came to
                found[way].append(row)
            if way == 0:
                break
        except sqlite3.Error:
            whole = False
        seen |= {row[: len(keys)] for row in found[0]}
    rows = [row[len(keys) :] for row in (*found[0], *reversed(found[1]))]
    old = is_unchecked(db)
    good = [row[:-1] for row in rows if row[-1] == compute_checksum(row[:-1]) or (row[-1] is None and old)]
    return good, len(rows) - len(good), whole


def _name_checkpoints(run: Path, new: sqlite3.Connection, found: Sequence[Found], goal: Found | None) -> None:
    """Enter the whole checkpoints up to the goal, with score and pin if the old database has them, and the cursor."""
    entered: dict[str, Sequence[Any]] = {}
    with suppress(StoreError, sqlite3.Error), closing(schema.connect(run)) as db:
        entered = {str(row[1]): row for row in read_leniently(db, "checkpoints")[0]}
    if goal is None:
        return
    whole = [f for f in found if not f.fault and f.step <= goal.step]
    told = [entered.get(f.name, (f.step, f.name, 0, None)) for f in whole]
    write_rows(new, "checkpoints", [(f.step, f.name, *row[2:]) for f, row in zip(whole, told, strict=True)])
    folder = run / "checkpoints"
    tree = checkpoint.read(folder / goal.name, RingFiles(folder / "rings"))
    seconds = (tree.get("progress") or tree).get("seconds", 0.0)
    stage, wall = new.execute("select stage, wall from steps where step = ?", (goal.step,)).fetchone() or ("", seconds)
    write_rows(new, "cursor", [(goal.step, goal.name, stage, wall)])

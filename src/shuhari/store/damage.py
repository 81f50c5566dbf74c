"""Check a run directory for damage: the checksum of every row, every checkpoint, and whether rows and checkpoints
agree. Nothing here changes anything; `repair` does.

A kill leaves at most one checkpoint that the database does not name, as each is named before the next is begun. More of
them, or a cursor whose checkpoint is gone, mean that the database is older than the checkpoints: its log was lost, or
another database was put in its place.
"""

from __future__ import annotations

import json
import math
import sqlite3
import tomllib
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from shuhari.store import finding, schema, sets
from shuhari.store.directory import NoRunError, explain_place
from shuhari.store.files import DamageError, Lock, NewerError, StoreError, is_locked, read_file, translate_errors
from shuhari.store.layout import find_odd, hint_at, refuse_odd
from shuhari.store.names import BASED, join_checkpoint, list_folders, read_name
from shuhari.store.rows import COLUMNS, COUNTED, find_file, list_columns, read_cursor, read_fact, read_rows, sum_rows

_LOOKS = 4  # how often what may have vanished in a run that is being written is looked at again
_UNCOUNTED = "it was written before sets of rows had checksums: rows that are gone cannot be told, until it goes on"


@dataclass(frozen=True)
class Found:
    """A checkpoint on disk. fault: what is wrong with it, "" if it is whole; named: whether the database has it."""

    name: str
    step: int
    named: bool
    fault: str = ""


@dataclass
class Report:
    """The result of `inspect_run`. rows: number of whole rows of each table, up to the first damaged one; last: the
    last step that has a row; faults: what is damaged, one sentence each; files: names of damaged files other than the
    database and the checkpoints; odd: names of the library's files or folders that are something else; notes: what
    cannot be checked, and is no damage; running: whether a process was writing the run meanwhile."""

    path: Path
    rows: dict[str, int] = field(default_factory=dict)
    last: int = -1
    faults: list[str] = field(default_factory=list)
    checkpoints: list[Found] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    running: bool = False

    @property
    def repairable(self) -> bool:
        """Whether `repair_run` can make a run of it that continues, or that starts again if it had no checkpoint
        yet."""
        if Lock.NAME in self.odd:
            return False
        return self.goal is not None or not (self.checkpoints or self.rows.get("checkpoints"))

    @property
    def goal(self) -> Found | None:
        """The checkpoint that the run continues from after a repair: the newest whole one.

        Exception: a single checkpoint after the last row, which a kill has left. Going back to the one before costs a
        few steps; continuing from this one would cost their rows."""
        whole = sorted((c for c in self.checkpoints if not c.fault), key=lambda c: read_name(c.name))
        newer = [c for c in self.checkpoints if not c.named and c.step > self.last]
        if len(newer) == 1 and len(whole) > 1 and whole[-1] == newer[0]:
            return whole[-2]
        return whole[-1] if whole else None


def inspect_run(run: Path) -> Report:
    """Read everything of a run that has a checksum, checkpoints too, also while it is being written.

    Then files come and go: what has vanished, or is not there yet, is checked again, and only a fault that persists
    counts. StoreError if `run` is none, or of a newer version."""
    report, others = _examine(run)
    for _ in range(_LOOKS):
        if not (others and report.running):
            break
        before = others
        report, now = _examine(run)
        others = [fault for fault in now if fault in before]
    report.faults += others
    if report.running:
        told = "\n".join(others)
        report.files = [name for name in report.files if str(run / name) in told]
        report.checkpoints = [c for c in report.checkpoints if c.fault in told]
    return report


def _examine(run: Path) -> tuple[Report, list[str]]:
    """Return (the report, with the faults of the database; the faults of other files, which may pass while a run is
    written)."""
    report, others = Report(run, running=is_locked(run)), list[str]()
    if not (run / schema.FILE).exists() and not list_folders(run):
        raise NoRunError(explain_place(run))
    named, text, complete = dict[str, int](), None, False
    odd = find_odd(run)
    report.odd, report.faults = list(odd), list(odd.values())
    try:
        _refuse_gone(run)
        with translate_errors(f"read {run}"), closing(schema.connect(run, limit=math.inf)) as db:
            db.execute("begin")  # one state of the run for all that is read, though it is being written
            report.faults += find_faults(db, report.rows, {})
            with suppress(StoreError, sqlite3.Error):
                text, complete = read_fact(db, "recipe"), bool(read_fact(db, "complete"))
            with suppress(sqlite3.Error):
                report.last = int(db.execute("select coalesce(max(step), -1) from steps").fetchone()[0])
            report.notes += [_UNCOUNTED] if sets.read_format(db) in range(1, sets.FORMAT) else []
            db.execute("rollback")
            with suppress(StoreError, sqlite3.Error):
                named = {name: step for step, name, *_ in read_rows(db, "checkpoints")}
                others += [fault] if (fault := find_disagreement(run, db)) else []
    except NewerError:
        raise
    except StoreError as error:
        report.faults += [error.what] if error.what not in report.faults else []
    bases = set[str]()
    report.checkpoints = [_read_found(run, name, step, name in named, bases) for name, step in list_folders(run)]
    report.notes += [f"weights stand in it by reference to {b}, which is not there: put it back" for b in sorted(bases)]
    others += [f"a checkpoint of step {c.step} is damaged: {c.fault}"
               for c in report.checkpoints if c.fault and c.named]  # fmt: skip
    gone = sorted(named.keys() - {c.name for c in report.checkpoints})
    others += [f"a checkpoint of step {named[name]} is gone: {run / 'checkpoints'} has no {name}"
               for name in gone if not others and "checkpoints" not in odd]  # fmt: skip
    for name, fault in (("recipe.toml", _check_recipe(run, text)), ("summary.json", _check_summary(run, complete))):
        if fault and name not in odd:
            report.files.append(name)
            others.append(f"{run / name}: {fault}")
    report.running |= is_locked(run)
    return report, others


def _check_recipe(run: Path, stored: object) -> str:
    """Return what is wrong with the recipe; `stored`: its text in the database, None if it has none."""
    try:
        text = read_file(run / "recipe.toml").decode()
        tomllib.loads(text)
    except FileNotFoundError:
        return "the file is missing"
    except (OSError, ValueError, RecursionError) as error:
        return str(error)
    return "" if stored in (None, text) else "it is not the recipe that the run was made with, which the database has"


def _check_summary(run: Path, complete: bool) -> str:
    try:
        found = json.loads(read_file(run / "summary.json"))
    except FileNotFoundError:
        return "the file is missing, though the run is complete" if complete else ""
    except (OSError, ValueError, RecursionError) as error:
        return str(error)
    return "" if isinstance(found, dict) else f"a {type(found).__name__}: expected an object"


def check(run: Path, db: sqlite3.Connection) -> dict[str, tuple[int, int]]:
    """Return the sums of the tables of a run, as in `sets`; DamageError if rows are damaged or the checkpoints are not
    its own, so that it must not continue."""
    sums = dict[str, tuple[int, int]]()
    fault = find_disagreement(run, db) or next(iter(find_faults(db, {}, sums)), "")
    if fault:
        raise DamageError(fault, hint_at(run))
    return sums


def find_faults(db: sqlite3.Connection, count: dict[str, int], sums: dict[str, tuple[int, int]]) -> list[str]:
    """Return the faults of the database: its integrity, the first damaged row of each table, gaps in the index of
    groups, and tables that are not the sets of rows that were written. `count` gets the number of whole rows of each
    table, `sums` its sum as a set, if all rows are whole."""
    found = []
    try:
        (answer,) = db.execute("pragma integrity_check(1)").fetchone()
        found += [] if answer == "ok" else [f"the database is damaged (SQLite says {answer.splitlines()[-1]!r})"]
    except sqlite3.DatabaseError as error:
        found.append(f"the database is damaged (SQLite says {str(error)!r})")
    for table in COLUMNS:
        try:
            sums[table] = sum_rows(db, table, count)
        except StoreError as error:
            found.append(error.what)
        except sqlite3.DatabaseError as error:
            found.append(f"the table {table} cannot be read to its end (SQLite says {str(error)!r})")
    with suppress(sqlite3.DatabaseError):  # told above
        found += [f"{find_file(db)}: {fault}"] if (fault := finding.find_fault(db)) else []
    with suppress(sqlite3.DatabaseError, StoreError):  # told above
        found += [f"{find_file(db)}: {fault}" for fault in _compare_sets(db, sums)]
    return found


def _compare_sets(db: sqlite3.Connection, sums: dict[str, tuple[int, int]]) -> list[str]:
    """Return how tables differ from the sets of rows that were written; nothing for a run of a format without
    counts."""
    if not list_columns(db, "meta") or (format := sets.read_format(db)) in range(1, sets.FORMAT):
        return []
    if not format:
        return ["the fact format is missing"]
    try:
        written = sets.read_sums(read_fact(db, sets.FACT))
    except ValueError as error:
        return [f"the fact {sets.FACT} is damaged, or missing ({error})"]
    there = (int(step) for (step,) in db.execute("select step from steps order by step"))
    explained = (sets.explain(t, sums[t], written.get(t, (0, 0)), there) for t in COUNTED if t in sums)
    return [fault for fault in explained if fault]


def find_disagreement(run: Path, db: sqlite3.Connection) -> str:
    """Return how the database and the checkpoints on disk contradict each other; "" if they agree."""
    cursor, there = read_cursor(db), list_folders(run)
    at = -1 if cursor is None else cursor["step"]
    named = {name for _, name, *_ in read_rows(db, "checkpoints")}
    newer = [step for name, step in there if step > at and name not in named]
    if cursor is None and named:
        return f"{run}: {schema.FILE} names checkpoints, and says not which of them was stored last: its cursor is gone"
    if cursor is not None and cursor["checkpoint"] not in named:
        return f"{run}: {schema.FILE} says that step {at} was stored last, and does not name its checkpoint"
    if cursor is not None and not join_checkpoint(run / "checkpoints", cursor["checkpoint"]).is_dir():
        steps = f"; there are those of steps {', '.join(str(s) for _, s in there)}" if there else ""
        return f"{run}: {schema.FILE} says that step {at} was stored last, whose checkpoint is gone{steps}"
    if len(newer) > 1:
        last = "that no step was stored with a checkpoint" if cursor is None else f"that step {at} was stored last"
        steps = ", ".join(map(str, newer))
        lost = "it has lost what came after"
        return f"{run}: {schema.FILE} says {last}, yet there are checkpoints of steps {steps}: {lost}"
    return ""


def refuse_lost(run: Path) -> None:
    """Raise DamageError if a file is not of its kind, or if the database is gone or empty but its checkpoints or log
    exist."""
    refuse_odd(run)
    _refuse_gone(run)


def _refuse_gone(run: Path) -> None:
    file, wal = run / schema.FILE, run / f"{schema.FILE}-wal"
    there = ", ".join(str(step) for _, step in list_folders(run))
    if file.exists() and (not file.is_file() or file.stat().st_size):
        return
    if there or (wal.is_file() and wal.stat().st_size and file.exists()):
        what = "is empty" if file.exists() else "is gone"
        rest = f"though checkpoints of steps {there} are there" if there else "though its log is there"
        hint = f"`shuhari doctor {run}` says what can be saved; nothing was changed (to start anew, choose another "
        raise DamageError(f"{file} {what}, {rest}", f"{hint}folder with --run)")


def _read_found(run: Path, name: str, step: int, named: bool, bases: set[str]) -> Found:
    """Read a checkpoint whole and return what was found. `bases`: gets the paths of models whose weights it has by
    reference, and that do not exist (a copy of small ones is in `needs/`)."""
    from shuhari.store import checkpoint
    from shuhari.store.ring import RingFiles

    folder = run / "checkpoints"
    try:
        tree = checkpoint.read(folder / name, RingFiles(folder / "rings"))
    except StoreError as error:
        return Found(name, step, named, str(error))
    based = tree.get(BASED, {}) if isinstance(tree, dict) else {}
    places = {str(entry["place"]): Path(str(entry["path"])).expanduser() for entry in based.values()}
    bases.update(place for place, path in places.items() if not (path.exists() or Path(place).exists()))
    return Found(name, step, named)

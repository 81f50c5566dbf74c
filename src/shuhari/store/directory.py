"""Run directories from outside: find one by name, list them, read one, also while it is being written. No torch until a
checkpoint or a rollout is read.

A run: `recipe.toml` (resolved), `run.sqlite`, `checkpoints/`, `summary.json` once it is complete.
"""

from __future__ import annotations

import json
import sqlite3
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Unpack

from shuhari.data import nearest
from shuhari.store import finding, schema
from shuhari.store.files import CheckpointError, StoreError, is_locked, read_file, translate_errors
from shuhari.store.layout import is_child
from shuhari.store.names import join_checkpoint, read_name
from shuhari.store.rows import list_columns, parse, read_cursor, read_fact, read_rows
from shuhari.store.sizes import check_table

NEWEST = 8  # runs that a message names


class NoRunError(StoreError, LookupError):
    """The error for a name that no run has."""


class Run:
    """A run, read-only. Every call opens the database anew, so its result is always current; any thread may call it."""

    def __init__(self, path: str | Path, format: int = schema.FORMAT) -> None:
        self.path, self.format = Path(path), format
        with self._open():
            pass

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with translate_errors(f"read {self.path}"):
            db = schema.connect(self.path, self.format)
            try:
                yield db
            finally:
                db.close()

    @property
    def cursor(self) -> dict[str, Any] | None:
        with self._open() as db:
            return read_cursor(db)

    @property
    def step(self) -> int:
        """The last committed step; -1 before the first."""
        with self._open() as db:
            return int(db.execute("select coalesce(max(step), -1) from steps").fetchone()[0])

    @property
    def status(self) -> str:
        """running | complete | failed | stopped"""
        if is_locked(self.path):
            return "running"
        complete = self.get("complete")
        if complete or (complete is None and (self.path / "summary.json").is_file()):
            return "complete"
        return "failed" if self.get("failed") else "stopped"

    @property
    def recipe(self) -> dict[str, Any]:
        """The resolved recipe; StoreError if it is missing or not TOML."""
        try:
            return tomllib.loads(read_file(self.path / "recipe.toml").decode())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            raise StoreError(f"{self.path / 'recipe.toml'}: {error}") from error

    @property
    def summary(self) -> dict[str, Any] | None:
        """summary.json, None while there is none."""
        try:
            found = json.loads(read_file(self.path / "summary.json"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(f"{self.path / 'summary.json'}: {error}") from error
        if not isinstance(found, dict):
            raise StoreError(f"{self.path / 'summary.json'}: a {type(found).__name__}: expected an object")
        return found

    def get(self, key: str, default: Any = None) -> Any:
        """Return a fact about the whole run (`total`, `complete`)."""
        with self._open() as db:
            return read_fact(db, key, default)

    def metrics(self, after: int = -1, most: int | None = None) -> dict[str, list[Any]]:
        """Return columns of equal length, one entry for each committed step later than `after`, the first `most` of
        them: `step`, `stage`, `wall` (seconds) and every metric; None if a step lacks that metric."""
        args = (after, -1 if most is None else most)
        with self._open() as db:
            rows = list(read_rows(db, "steps", "where step > ? order by step limit ?", args))
        values = [self._parse(f"step {row[0]}", row[3], dict) for row in rows]
        names = dict.fromkeys(
            n
            for v in values
            for n in v
        )
        check_table(len(names), len(rows), sum(map(len, values)))
        columns: dict[str, list[Any]] = {
            n: [row[i] for row in rows]
            for i, n in enumerate(("step", "stage", "wall"))
        }
        for name in names:
            if name not in ("step", "stage", "wall"):
                columns[name] = [v.get(name) for v in values]
        return columns

    def read_columns(self, names: Iterable[str]) -> dict[str, list[Any]]:
        """Return the columns of some metrics, at the steps that have one of them; much faster than `metrics` for a long
        run with many metrics. Checksums are not checked."""
        wanted = list(dict.fromkeys(names))
        plain = all('"' not in name and "\\" not in name for name in wanted)
        if plain and wanted:
            found = ", ".join(["json_extract(metrics, ?)"] * len(wanted))
            query = f"select step, stage, wall, {found} from steps order by step"
            with self._open() as db, suppress(sqlite3.OperationalError):  # NaN, which is no JSON
                rows = [
                    row
                    for row in db.execute(
                        query,
                        [f'$."{n}"' for n in wanted],
                    )
                    if _is_any(row[3:])
                ]
                return {
                    n: [row[i] for row in rows]
                    for i, n in enumerate(("step", "stage", "wall", *wanted))
                }
        columns = self.metrics()
        kept = [
            i
            for i in range(len(columns["step"]))
            if _is_any(columns[n][i] for n in wanted if n in columns)
        ]
        gone = [None] * len(columns["step"])
        return {
            n: [columns.get(n, gone)[i] for i in kept]
            for n in ("step", "stage", "wall", *wanted)
        }

    def list_metrics(self, last: int = 500) -> list[str]:
        """Return the names of the metrics of the `last` steps, in their order."""
        with self._open() as db:
            rows = list(read_rows(db, "steps", "order by step desc limit ?", (last,)))
        return list(
            dict.fromkeys(
                n
                for row in reversed(rows)
                for n in self._parse(f"step {row[0]}", row[3], dict)
            )
        )

    def events(
        self, kind: str | None = None, last: int | None = None, without: str | None = None
    ) -> list[dict[str, Any]]:
        """Return [{step, kind, data}] in order, of one kind or all, or all `without` one; only the `last` of them."""
        asked = {"kind = ?": kind, "kind <> ?": without}
        where = " and ".join(["true", *(part for part, value in asked.items() if value is not None)])
        args = [*(value for value in asked.values() if value is not None), -1 if last is None else last]
        with self._open() as db:
            rows = list(read_rows(db, "events", f"where {where} order by id desc limit ?", args))[::-1]
        return [{"step": step, "kind": k, "data": self._parse(f"an event of step {step}", x)} for step, k, x in rows]

    def count_events(self, kind: str, last: int) -> tuple[int, list[dict[str, Any]]]:
        """Return (the number of different events of a kind, the `last` of these as {data, count, first, last}: how
        often, the first step and the last; the last first). Checksums are not checked."""
        with self._open() as db:
            total = db.execute("select count(distinct data) from events where kind = ?", (kind,)).fetchone()[0]
            rows = db.execute("select data, count(*), min(step), max(step) from events where kind = ? group by data "
                              "order by max(step) desc, max(id) limit ?", (kind, last)).fetchall()  # fmt: skip
        return total, [{"data": self._parse(f"an event of step {end}", data), "count": n, "first": begin, "last": end}
                       for data, n, begin, end in rows]  # fmt: skip

    def problems(self) -> list[dict[str, Any]]:
        """Return [{task, problem, asked, solved, first, last}] of every problem that was ever posed: samples, how many
        of them were right, the first step and the last; empty for a run of format 1."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        with self._open() as db:
            for step, task, problem, asked, solved in read_rows(db, "problems", "order by task, problem, step"):
                new = {"task": task, "problem": problem, "asked": 0, "solved": 0, "first": step}
                row = found.setdefault((task, problem), new)
                row |= {"asked": row["asked"] + asked, "solved": row["solved"] + solved, "last": step}
        return list(found.values())

    def _parse(self, what: str, text: str, kind: type = object) -> Any:
        return parse(self.path / schema.FILE, what, text, kind)

    def rollouts(self, step: int | None = None, problem: str = "") -> list[dict[str, Any]]:
        """Return the groups kept of a step, by default of the last that kept any; or those of a problem (its id,
        task/id), of that step or of all: `step` and what was committed. StoreError if a row is damaged, or if a problem
        is given for a run of format 1, which does not store the problem of a group."""
        from shuhari.store.rollouts import read_groups

        with self._open() as db:
            if problem and "problem" not in list_columns(db, "rollouts"):
                message = "ask for a step, or resume it, and later groups are found"
                raise StoreError(f"{self.path} does not say whose a group is (it is of format 1): {message}")
            if step is None and not problem:
                step = db.execute("select max(step) from rollouts").fetchone()[0]
            parts, args = list[str](), list[Any]()
            if problem:
                where, args = finding.name_condition(problem)
                parts.append(where)
            if step is not None or not problem:
                parts, args = [*parts, "step = ?"], [*args, step]
            where = " and ".join(parts)
            return read_groups(db, f"where {where} order by id", args)

    def kept_steps(self) -> list[int]:
        """Return the steps that have kept groups, in order."""
        with self._open() as db:
            return [int(row[0]) for row in db.execute("select distinct step from rollouts order by step")]

    def find_groups(
        self, order: str = "score", *, descending: bool = False, limit: int = 50, offset: int = 0,
        **filters: Unpack[finding.Filters],
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Return a page of the kept groups in an order: {id, step, group, task, problem, why, score, worst, best,
        length, status, samples, replies}, without their episodes, which `read_group(id)` has. Fast for any number of
        groups, as none is read; a run of a format before 5 has all its groups read each time, until it is continued.

        order: "score" (mean reward of the samples), "worst", "best" (rewards of single samples), "length" (decisions of
        the longest) or "step"; of equals the earlier first, all the other way round if `descending`. Groups without
        that number are left out. filters: `step`; `low`, `high`, bounds of the score, inclusive; `shortest`, `longest`,
        the same for the length; `status`, how at least one sample ended; `problem`, as in `rollouts`; `text`, words
        that all occur in the problem, the answers or the reasons, in any case, with `add*` for any word that begins so;
        `replies`, how often an environment or a tool answered one sample, at least; `contrast`, whether samples earned
        different rewards. TypeError for an unknown filter, ValueError for an unknown order or status, text without a
        word, a number beyond 64 bits; StoreError if the index does not match the rollouts."""
        with self._open() as db:
            db.execute("begin")  # one state of the run for all that is read, though it is being written
            return finding.find(db, order=order, descending=descending, limit=limit, offset=offset, **filters)

    def count_groups(self, order: str = "score", **filters: Unpack[finding.Filters]) -> int:
        """Return the number of groups that `find_groups` has on all its pages."""
        with self._open() as db:
            db.execute("begin")
            return finding.count(db, order=order, **filters)

    def read_group(self, id: int) -> dict[str, Any]:
        """Return a group that was found, with its episodes: what was committed, and `step`."""
        from shuhari.store.rollouts import read_group

        with self._open() as db:
            return read_group(db, id)

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return [{step, score}] of the kept checkpoints that are whole as far as can be seen without reading their
        tensors, by step; score: the held-out number that decides which is best, None if its step had none."""
        from shuhari.store.checkpoint import find_fault

        with self._open() as db:
            rows = sorted(read_rows(db, "checkpoints"), key=lambda row: read_name(row[1]))
        at = self.path / "checkpoints"
        whole = (row for row in rows if not find_fault(join_checkpoint(at, row[1]), at / "rings"))
        return [{"step": step, "score": score} for step, _, _, score in whole]

    def find_step(self, step: str) -> int | None:
        """Return the step of a kept checkpoint: by its number, or `best` (the first of equals); None for "", the last.
        StoreError if there is none, with the steps that exist."""
        there = self.checkpoints()
        if not there:
            gone = "that can be read: `shuhari doctor` says why" if self.cursor else "yet: train it first"
            raise StoreError(f"{self.path} has no checkpoint {gone}")
        if not step:
            return None
        scored = [c for c in there if c["score"] is not None]
        steps = ", ".join(dict.fromkeys(str(c["step"]) for c in there))
        if step == "best":
            if not scored:
                raise StoreError(f"{self.path} has no best checkpoint: none of steps {steps} was evaluated")
            return int(max(scored, key=lambda c: c["score"])["step"])
        if not step.isdecimal() or int(step) not in {c["step"] for c in there}:
            best = ", or `best`" if scored else ""
            raise StoreError(f"{self.path} has no checkpoint of step {step}; checkpoints there: steps {steps}{best}")
        return int(step)

    def load(self, step: int | None = None) -> Any:
        """Return the tree of the newest checkpoint, or of the one at `step`; CheckpointError if it cannot be read."""
        from shuhari.store.restore import load_tree
        from shuhari.store.ring import RingFiles

        for attempt in range(5):
            before = self.cursor
            try:
                with self._open() as db:
                    return load_tree(self.path, db, RingFiles(self.path / "checkpoints" / "rings"), step)
            except CheckpointError:
                if step is not None or attempt == 4 or self.cursor == before:  # else the run went on and pruned it
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")


def _is_any(values: Iterable[Any]) -> bool:
    """Whether one of some values is not None."""
    return any(value is not None for value in values)


def metrics(run: str | Path) -> dict[str, list[Any]]:
    """Return the metrics of a run, by path, name or `latest`; see `Run.metrics`."""
    return Run(resolve(run)).metrics()


def resolve(run: str | Path, root: str | Path = "runs") -> Path:
    """Return the directory of RUN: a path, a name under `root`, or `latest`, the last written run that no claim and no
    study has made; NoRunError gives the nearest name."""
    path, root = Path(run), Path(root)
    names = {str(p.relative_to(root)): p for p in find_runs(root)}
    if str(run) == "latest":
        own = [p for p in names.values() if not is_child(p)]
        if not own:
            made = f" ({len(names)} were made by claims or studies)" if names else ""
            raise NoRunError(f"no run is in {root}/ yet{made}: `shuhari train` makes one")
        return max(own, key=read_change_time)
    for candidate in (path, root / path):
        if (candidate / schema.FILE).exists():
            return candidate
    if path.exists():
        raise NoRunError(explain_place(path, names))
    named = path.relative_to(root) if path.is_relative_to(root) else path
    raise NoRunError(f"no run {str(run)!r}, neither a path nor in {root}/; {_nearest_run(str(named), names)}")


def _nearest_run(name: str, names: Mapping[str, Path]) -> str:
    """Return the end of a message: the nearest name, or the newest runs, those in folders (children, claims) last."""
    near = nearest(name, names)
    if near.startswith("did you") or len(names) <= NEWEST:
        return near
    order = sorted(names, key=lambda n: ("/" in n, -read_change_time(names[n])))
    return f"the newest: {', '.join(order[:NEWEST])} (`shuhari runs` lists all)"


def explain_place(path: Path, names: Iterable[str] = ()) -> str:
    """Describe what is at a path that is no run, and which run may have been meant: one around it, or one inside."""
    what = f"{path} is not a run: it {f'has no {schema.FILE}' if path.is_dir() else 'is a file'}"
    around = next((p for p in path.absolute().parents if (p / schema.FILE).exists()), None)
    if around is not None:
        return f"{what}; it lies in the run {around}: expected that, or {around}@STEP"
    inside = find_runs(path) if path.is_dir() else []
    if inside:
        newest = max(inside, key=read_change_time)
        return f"{what}, and holds {len(inside)} that are: expected one of them, such as {newest}"
    return f"{what}; {nearest(path.name, names)}" if names else what


def find_checkpoint(text: str, root: str | Path = "runs") -> tuple[Path, int | None]:
    """Return (directory, step) of a checkpoint `RUN` (the last: None), `RUN@step` or `RUN@best`. NoRunError, or
    StoreError for the step."""
    name, _, step = text.rpartition("@") if "@" in text and not Path(text).is_dir() else (text, "", "")
    path = resolve(name, root)
    return path, Run(path).find_step(step)


def find_runs(root: Path) -> list[Path]:
    """Return the directories with a database, at most three names deep: `runs/x`, `runs/family/method/seed`."""
    return [
        p.parent
        for depth in (1, 2, 3)
        for p in root.glob(f"{'*/' * depth}{schema.FILE}")
    ]


def read_change_time(run: Path) -> float:
    times = [p.stat().st_mtime for p in (run / schema.FILE, run / f"{schema.FILE}-wal") if p.exists()]
    return max(times)

"""Lists of runs: what each is and how it stands, those that some words choose, and their removal. No torch."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from shuhari.store import schema
from shuhari.store.damage import list_folders
from shuhari.store.directory import Run, find_runs, read_change_time
from shuhari.store.files import Lock, StoreError, translate_errors
from shuhari.store.layout import OWN
from shuhari.store.rows import read_rows

GIVEN = "world/given/"  # begins the path of an environment that a program handed over
# what a list of runs shows
SCORES = ("evaluate/greedy", "evaluate/mean", "evaluate/score", "evaluate/policy/accuracy",
          "evaluate/reward/accuracy", "reward/mean",
          "rollout/return", "reward/score", "reward", "policy/accuracy", "study/coverage")  # fmt: skip
STATUSES = ("running", "complete", "failed", "stopped", "unreadable")


@dataclass(frozen=True)
class Summary:
    """One line of a list of runs. status: one of `STATUSES`; `note` says why it is unreadable or failed. date: when it
    was last written to, as ISO 8601 in local time."""

    name: str
    path: Path
    status: str
    step: int = -1
    total: int | None = None
    score: float | None = None
    score_name: str = ""
    note: str = ""
    recipe: str = ""
    task: str = ""
    date: str = ""


def list_runs(root: str | Path = "runs", words: Iterable[str] = (), status: str = "") -> list[Summary]:
    """Every run under `root`, by name; one that cannot be read is listed as such. words: those alone that have each of
    them in name, recipe, task or status, whatever the case; status: those alone that stand so."""
    found = (summarise(path, str(path.relative_to(root))) for path in sorted(find_runs(Path(root))))
    wanted = [word.lower() for word in words]
    return [r for r in found if status in ("", r.status) and matches(r, wanted)]


def remove_run(run: str | Path) -> list[str]:
    """Remove what the library has written of a run, and its folder where that is then empty; the names of what is left,
    which somebody else has put there. LockedError while a process writes it, StoreError where it is no run."""
    path = Path(run)
    if path.is_symlink() or not ((path / schema.FILE).exists() or list_folders(path)):
        raise StoreError(f"{path} is not a run: it has no {schema.FILE}")
    with translate_errors(f"remove the run {path}"):
        lock = Lock(path)
        try:
            for name in [*OWN, *(p.name for p in path.glob("damaged-*"))]:
                one = path / name
                if one.is_dir() and not one.is_symlink():
                    shutil.rmtree(one)
                else:
                    one.unlink(missing_ok=True)
        finally:
            lock.release()
        left = sorted(p.name for p in path.iterdir())
        if not left:
            path.rmdir()
    return left


def matches(run: Summary, words: Iterable[str]) -> bool:
    """Whether each of some words, in lower case, stands in a run's name, recipe, task or status."""
    text = f"{run.name} {run.recipe} {run.task} {run.status}".lower()
    return all(word in text for word in words)


def summarise(path: Path, name: str) -> Summary:
    """The line of one run in a list of runs, whatever state its files are in."""
    date = name_of = task = ""
    try:
        date = datetime.fromtimestamp(read_change_time(path)).isoformat(" ", "minutes")
        run = Run(path)
        total = run.get("total")
        with suppress(StoreError):
            recipe = run.recipe
            name_of, task = str(recipe.get("name", "")), name_tasks(recipe)
            total = recipe.get("steps") if total is None else total
        score_name, score, ungraded = _read_last_score(run)
        status = run.status
        note = f"{ungraded:.0%} of that ungraded" if ungraded else ""
        note = str(run.get("failed")) if status == "failed" else note
        return Summary(name, path, status, run.step, total, score, score_name, note, name_of, task, date)
    except (StoreError, OSError, ValueError, TypeError, LookupError) as error:
        return Summary(name, path, "unreadable", note=str(error), recipe=name_of, task=task, date=date)


def name_tasks(recipe: Mapping[str, Any]) -> str:
    """The names of a recipe's task, or of the tasks of its stages, as a recipe writes them; of an environment that a
    program handed over its class, `gym/Maze (env=)`."""
    stages: Any = recipe.get("stage", [])
    tables = [recipe.get("task"), *(s.get("task") for s in stages if isinstance(s, Mapping))]
    return ", ".join(dict.fromkeys(name_task(t) for t in tables if isinstance(t, Mapping) and "name" in t))


def name_task(table: Mapping[str, Any]) -> str:
    """What a task's table is of: its name, with the path beside it."""
    name, path = str(table.get("name", "")), str(table.get("path", ""))
    if path.startswith(GIVEN):
        return f"{name}/{path.removeprefix(GIVEN).rpartition('-')[0]} (env=)"
    return f"{name}/{path}" if path and name == name.partition("/")[0] else name


def _read_last_score(run: Run) -> tuple[str, float | None, float]:
    """The score that a list shows, its name, and the share of its evaluation that nothing graded."""
    found: dict[str, float] = {}
    with run._open() as db:  # evaluations are rare: look back until one is found, not for ever
        for step, _, _, text in read_rows(db, "steps", "order by step desc limit 1000"):
            values = run._parse(f"step {step}", text, dict)
            known = {n: x for n, x in values.items() if isinstance(x, int | float) and x == x}
            named = {n: known[n] for n in (*SCORES, "evaluate/ungraded") if n in known}
            found = {**named, **found}
            if SCORES[0] in found:
                break
    name = next((n for n in SCORES if n in found), "")
    share = found.get("evaluate/ungraded", 0.0) if name.startswith("evaluate/") and "accuracy" not in name else 0.0
    return name, found.get(name), share

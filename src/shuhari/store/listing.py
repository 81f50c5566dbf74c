"""Lists of runs: what each is and its status, selection by words, and their names, tags and removal. No torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from shuhari.store import schema
from shuhari.store.directory import Run, find_runs, read_change_time
from shuhari.store.files import Lock, StoreError, read_file, replace_file, translate_errors
from shuhari.store.layout import MADE, OWN, TAGS_LOCK, is_child
from shuhari.store.names import list_folders
from shuhari.store.rows import read_rows

GIVEN = "world/given/"  # begins the path of an environment that a program handed over
# what a list of runs shows
SCORES = ("evaluate/greedy", "evaluate/mean", "evaluate/score", "evaluate/policy/accuracy",
          "evaluate/reward/accuracy", "reward/mean",
          "rollout/return", "reward/score", "reward", "policy/accuracy", "study/coverage")  # fmt: skip
TAGS = "tags.json"  # in a run's folder: a list of words, which its user has given it
PATIENCE = 5.0  # seconds to wait for others who tag a run
LARGEST = 1 << 16  # bytes of what says for which claims a run was made
LONGEST, MOST = 40, 20  # characters of a tag, tags of a run
STATUSES = ("running", "complete", "failed", "stopped", "unreadable")


@dataclass(frozen=True)
class Summary:
    """One line of a list of runs. status: one of `STATUSES`; `note`: why it is unreadable or failed. date: when it was
    last written to, as ISO 8601 in local time. tags: words given by its user. child: whether a claim or a study has
    made it; `recipe` then is for which, and as what. measure: the reward that its evaluations read, "" if not
    stored."""

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
    tags: tuple[str, ...] = ()
    child: bool = False
    measure: str = ""


def list_runs(
    root: str | Path = "runs", words: Iterable[str] = (), status: str = "", children: bool = True
) -> list[Summary]:
    """Return every run under `root`, by name; an unreadable one is listed as such.

    words: only the runs that have each word in name, recipe, task, status or tags, in any case, or, for `tag:x`, the
    tag x; status: only the runs with that status; children: also the runs that claims and studies have made."""
    there = sorted(path for path in find_runs(Path(root)) if children or not is_child(path))
    found = (summarise(path, str(path.relative_to(root))) for path in there)
    wanted = [word.lower() for word in words]
    return [r for r in found if status in ("", r.status) and matches(r, wanted)]


def remove_run(run: str | Path) -> list[str]:
    """Remove what the library has written of a run, and its folder if that is then empty; return the names of what is
    left, the files of others. LockedError while a process writes it, StoreError if it is no run."""
    path = Path(run)
    _check_run(path)
    with translate_errors(f"remove the run {path}"):
        lock = Lock(path)
        try:
            names = [name for name in OWN if name != Lock.NAME]
            for name in [*names, *(p.name for p in path.glob("damaged-*")), Lock.NAME]:  # locked until all is gone
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


def rename_run(run: str | Path, name: str, root: str | Path = "runs") -> Path:
    """Rename a run below `root`, where a name may have up to three parts (`sums/long/s1`); return its new folder.
    Folders that are left empty are removed. LockedError while a process writes it, StoreError for a name that is
    invalid or taken."""
    path, root = Path(run), Path(root)
    _check_run(path)
    if not path.resolve().is_relative_to(root.resolve()) or path.resolve() == root.resolve():
        raise StoreError(f"{path} is not below {root}, so that it has no name there")
    new = root.joinpath(*_read_name(name))
    inside = next((p for p in new.parents if (p / schema.FILE).exists()), None)
    if inside is not None:
        raise StoreError(f"{new} would lie in the run {inside}: choose another name")
    if not new.parent.resolve().is_relative_to(root.resolve()):
        raise StoreError(f"{new.parent} leads out of {root}: choose another name")
    if new.exists() or new.is_symlink():
        raise StoreError(f"{new} is there already: choose another name")
    with translate_errors(f"rename the run {path}"):
        lock = Lock(path)
        try:
            new.parent.mkdir(parents=True, exist_ok=True)
            path.rename(new)
        finally:
            lock.release()
    with suppress(OSError):  # of those that hold something else
        for folder in path.parents:
            if folder.resolve() == root.resolve():
                break
            folder.rmdir()
    return new


def tag_run(run: str | Path, add: Iterable[str] = (), remove: Iterable[str] = ()) -> tuple[str, ...]:
    """Add tags to a run and remove some, also while it is written; return its tags, sorted. StoreError for a tag that
    is no word."""
    path, gone = Path(run), {*remove}
    _check_run(path)
    for tag in (new := [*add]):
        if not 0 < len(tag) <= LONGEST or not tag.isprintable() or " " in tag or tag.startswith("tag:"):
            raise StoreError(f"{tag!r:.80} is not a tag: expected one word of at most {LONGEST} characters")
    with translate_errors(f"tag the run {path}"):
        lock = Lock(path, PATIENCE, TAGS_LOCK)
        try:
            tags = tuple(sorted({*read_tags(path), *new} - gone))
            if len(tags) > MOST:
                raise StoreError(f"{path} would have {len(tags)} tags: expected at most {MOST}")
            if tags:
                replace_file(path / TAGS, [json.dumps(tags).encode()])
            else:
                (path / TAGS).unlink(missing_ok=True)
        finally:
            lock.path.unlink(missing_ok=True)
            lock.release()
    return tags


def read_tags(run: Path) -> tuple[str, ...]:
    """Return the tags of a run; none if the file is missing, or not as `tag_run` writes it."""
    with suppress(OSError, ValueError, RecursionError):
        if (run / TAGS).stat().st_size <= 8 * LONGEST * MOST:
            found = json.loads(read_file(run / TAGS))
            return tuple(t for t in found if isinstance(t, str) and t.isprintable()) if isinstance(found, list) else ()
    return ()


def _check_run(path: Path) -> None:
    if path.is_symlink() or not ((path / schema.FILE).exists() or list_folders(path)):
        raise StoreError(f"{path} is not a run: it has no {schema.FILE}")


def _read_name(name: str) -> list[str]:
    """Return the parts of a run's name below its root."""
    parts = name.split("/")
    odd = [
        p
        for p in parts
        if not p or p[0] in ".-~" or not p.isprintable() or any(c in p for c in "@\\:")
    ]
    if odd or len(parts) > 3 or len(name) > 200 or name == "latest":
        raise StoreError(f"{name!r:.80} cannot be the name of a run: expected up to three names with / between them, "
                         "which do not begin with . - or ~ and have no @ : or \\")  # fmt: skip
    return parts


def matches(run: Summary, words: Iterable[str]) -> bool:
    """Whether each of some words, in lower case, occurs in a run's name, recipe, task, status or tags; for `tag:x`,
    whether x is one of its tags."""
    tags = {f"tag:{tag.lower()}" for tag in run.tags}
    text = f"{run.name} {run.recipe} {run.task} {run.status} {' '.join(run.tags)}".lower()
    return all(word in tags if word.startswith("tag:") else word in text for word in words)


def summarise(path: Path, name: str) -> Summary:
    """Return the line of one run in a list of runs, whatever state its files are in."""
    date = name_of = task = ""
    tags, child = read_tags(path), is_child(path)
    made = describe_made(path) if child else ""
    try:
        date = datetime.fromtimestamp(read_change_time(path)).isoformat(" ", "minutes")
        run = Run(path)
        total = run.get("total")
        with suppress(StoreError):
            recipe = run.recipe
            name_of, task = made or str(recipe.get("name", "")), name_tasks(recipe)
            total = recipe.get("steps") if total is None else total
        score_name, score, ungraded = _read_last_score(run)
        status = run.status
        note = f"{ungraded:.0%} of that ungraded" if ungraded else ""
        note = f"stopped: {why}" if (why := run.get("stopped")) and status == "complete" else note
        note = str(run.get("failed")) if status == "failed" else note
        measure = str(run.get("measure", ""))
        return Summary(name, path, status, run.step, total, score, score_name, note, name_of, task, date, tags, child,
                       measure)  # fmt: skip
    except (StoreError, OSError, ValueError, TypeError, LookupError) as error:
        return Summary(name, path, "unreadable", note=str(error), recipe=name_of, task=task, date=date, tags=tags,
                       child=child)  # fmt: skip


def read_made(run: Path) -> list[dict[str, Any]]:
    """Return the claims that a run was made for: {method, arm, seed, bed} each, by `claim`; none if unknown."""
    with suppress(OSError, ValueError, RecursionError):
        if (run / MADE).stat().st_size <= LARGEST:
            found = json.loads(read_file(run / MADE))
            return [e for e in found if isinstance(e, dict) and {"method", "arm", "seed", "bed"} <= e.keys()]
    return []


def describe_made(run: Path) -> str:
    """Describe a run that a claim or a study has made: its method, arm and seed; "" if unknown."""
    found = read_made(run)
    if not found:
        return ""
    first = found[0]
    text = name_arm(str(first["method"]), str(first["arm"]), str(first["bed"]))
    more = f" and of {len(found) - 1} more" if len(found) > 1 else ""
    return f"{text}, seed {first['seed']}{more}"


def name_arm(method: str, arm: str, bed: str) -> str:
    """Return a readable name of a claim's arm: the method's name for `method`, the bed's for `baseline`, if it has
    one."""
    if arm == "method":
        return method
    if arm == "baseline":
        return f"{bed} (baseline)" if bed else f"baseline of {method}"
    return f"{arm} of {method}"


def name_tasks(recipe: Mapping[str, Any]) -> str:
    """Return the names of a recipe's task, or of the tasks of its stages, as a recipe writes them; an environment that
    a program passed in is named by its class, `gym/Maze (env=)`."""
    stages: Any = recipe.get("stage", [])
    tables = [recipe.get("task"), *(s.get("task") for s in stages if isinstance(s, Mapping))]
    return ", ".join(dict.fromkeys(name_task(t) for t in tables if isinstance(t, Mapping) and "name" in t))


def name_task(table: Mapping[str, Any]) -> str:
    """Return the name of a task's table, with its path."""
    name, path = str(table.get("name", "")), str(table.get("path", ""))
    if path.startswith(GIVEN):
        return f"{name}/{path.removeprefix(GIVEN).rpartition('-')[0]} (env=)"
    return f"{name}/{path}" if path and name == name.partition("/")[0] else name


def find_tested(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the table of the task that a recipe's runs are tested on."""
    found: Mapping[str, Any] = recipe.get("evaluate", {}).get("task") or recipe.get("task", {})
    return found


def _read_last_score(run: Run) -> tuple[str, float | None, float]:
    """Return the name of the score that a list shows, the score, and the share of its evaluation that was not
    graded."""
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

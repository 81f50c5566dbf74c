"""The curriculum of a run: how often each problem was sampled and solved, and how hard the problems were, by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from shuhari.data import Array
from shuhari.desk.board.catalogue import Catalogue
from shuhari.store import Run, StoreError
from shuhari.store.rows import list_columns

BINS = 10  # of solve rates
CUT = 200  # characters of a name
LONGEST = 1000  # characters of a name by which rollouts are found
TASKS = 12  # tasks with a curve of their own, the most frequent ones
Order = Literal["rate", "asked", "solved", "first", "last", "problem", "task"]


@dataclass(frozen=True)
class Asked:
    """Problems, [n] by name: number of samples, number of right ones, the first step and the last."""

    names: list[tuple[str, str]]
    asked: Array
    solved: Array
    first: Array
    last: Array

    @cached_property
    def rate(self) -> Array:
        return self.solved / np.maximum(self.asked, 1)

    def choose(self, only: str) -> Array:
        """Return [n] whether each problem was `never` solved, `always`, or sometimes (`between`)."""
        never, always = self.solved == 0, (self.solved == self.asked) & (self.solved > 0)
        chosen = {"never": never, "always": always, "between": ~never & ~always}
        return chosen.get(only, np.ones(len(self.names), bool))


def list_problems(
    runs: Catalogue,
    run: str,
    task: str = "",
    words: str = "",
    only: Literal["", "never", "always", "between"] = "",
    order: Order = "rate",
    down: bool = False,
    limit: Annotated[int, Field(ge=1, le=500)] = 50,
    offset: Annotated[int, Field(ge=0)] = 0,
) -> dict[str, Any] | None:
    """Return {run, curricula, tasks, rates, total, problems}. curricula: stage -> its table of the recipe; tasks:
    [{task, problems, asked, solved, never, always}]; rates: a histogram of solve rates in BINS equal bins of [0, 1];
    problems: a page of the problems of a task whose names contain the `words` and that were `never` solved, `always`,
    or sometimes (`between`). `find` names a problem for the view of rollouts, `kept` is whether the run stores a group
    of it. Null while millions of counts are being read."""
    path = runs.find(run)
    asked = runs.numbers.of(path).keep("problems", lambda: _sum_problems(Run(path)))
    if asked is None:
        return None
    chosen = asked.choose(only)
    if task:
        chosen &= np.fromiter((t == task for t, _ in asked.names), bool, len(chosen))
    if wanted := words.lower().split():
        named = (f"{t}/{p}".lower() for t, p in asked.names)
        chosen &= np.fromiter(
            (
                all(word in name for word in wanted)
                for name in named
            ),
            bool,
            len(chosen),
        )
    at = np.flatnonzero(chosen)
    if order in ("problem", "task"):
        first = order == "problem"
        at = np.array(sorted(at.tolist(), key=lambda i: asked.names[i][::-1] if first else asked.names[i]), int)
    else:
        values = getattr(asked, order)[at]
        at = at[np.lexsort([-asked.asked[at], values] if order == "rate" else [values])]
    at = at[::-1] if down else at
    rates = np.histogram(asked.rate[at], BINS, (0, 1))[0]
    return {"run": run, "curricula": _read_curricula(Run(path)), "tasks": _describe_tasks(asked), "rates": rates,
            "total": len(at), "problems": _rows(Run(path), asked, at[offset : offset + limit].tolist())}  # fmt: skip


def describe_difficulty(
    runs: Catalogue, run: str, points: Annotated[int, Field(ge=2, le=2000)] = 200
) -> dict[str, dict[str, Any]] | None:
    """Return {solved: task -> {x, y}, shares: {x, never, always, between}}: by step, the share of right samples of each
    task; and the shares of problems with no right sample, only right ones, or both. Steps are merged into at most
    `points` points, with x the last step of each."""
    path = runs.find(run)
    steps = runs.numbers.of(path).keep("difficulty", lambda: _sum_steps(Run(path)))
    if steps is None:
        return None
    if not steps:
        return {"solved": {}, "shares": {"x": [], "never": [], "always": [], "between": []}}
    there = np.unique([row[0] for row in steps])
    size = -(-len(there) // points)
    place = {int(step): i // size for i, step in enumerate(there)}
    x = there[np.minimum(np.arange(size, len(there) + size, size), len(there)) - 1]
    counts: dict[str, Any] = defaultdict(lambda: np.zeros((len(x), 2)))
    shares = np.zeros((len(x), 3))
    for step, task, asked, solved, problems, never, always in steps:
        counts[task][place[step]] += asked, solved
        shares[place[step]] += never, always, problems - never - always
    largest = sorted(counts, key=lambda t: -counts[t][:, 0].sum())[:TASKS]
    solved_by = {}
    for task in largest:
        has = counts[task][:, 0] > 0
        solved_by[task[:CUT]] = {"x": x[has], "y": (counts[task][has, 1] / counts[task][has, 0]).round(4)}
    shares = (shares / np.maximum(shares.sum(1, keepdims=True), 1)).round(4)
    named = dict(zip(("never", "always", "between"), shares.T, strict=True))
    return {"solved": solved_by, "shares": {"x": x, **named}}


def _sum_problems(run: Run) -> Asked:
    """Read problems in the order of steps and sum them here, which is faster than in SQLite; empty for a run of format
    1."""
    found: dict[tuple[str, str], list[int]] = {}
    for step, task, problem, asked, solved in _query(run, "select step, task, problem, asked, solved from problems"):
        row = found.get((task, problem))
        if row is None:
            found[task, problem] = [asked, solved, step, step]
        else:
            row[0], row[1], row[3] = row[0] + asked, row[1] + solved, step
    rows = np.array([*found.values()], np.int64).reshape(-1, 4)
    return Asked([*found], rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3])


def _sum_steps(run: Run) -> list[tuple[Any, ...]]:
    """Return (step, task, asked, solved, problems, those never solved, those always) for each step and task."""
    names = "step, task, sum(asked), sum(solved), count(*), sum(solved = 0), sum(solved = asked and asked > 0)"
    return _query(run, f"select {names} from problems where asked > 0 group by step, task")


def _query(run: Run, query: str) -> list[tuple[Any, ...]]:
    with run._open() as db:
        there = db.execute("select 1 from sqlite_master where name = 'problems'").fetchone()
        rows = db.execute(query).fetchall() if there else []
    odd = next(
        (
            r
            for r in rows
            for x in r
            if not isinstance(x, int | str)
        ),
        None,
    )
    if odd is not None:
        raise StoreError(f"{run.path}: a count of problems is damaged ({odd!r:.80})")
    return rows


def _describe_tasks(asked: Asked) -> list[dict[str, Any]]:
    number = {
        task: i
        for i, task in enumerate(
            dict.fromkeys(t for t, _ in asked.names)
        )
    }
    at, n = np.fromiter((number[t] for t, _ in asked.names), int, len(asked.names)), len(number)

    def add(values: Array) -> list[int]:
        return np.bincount(at, values, n).astype(int).tolist() if n else []

    columns = {"problems": add(np.ones(len(at))), "asked": add(asked.asked), "solved": add(asked.solved),
               "never": add(asked.choose("never")), "always": add(asked.choose("always"))}  # fmt: skip
    return [
        {"task": task[:CUT], **{k: v[i] for k, v in columns.items()}}
        for task, i in number.items()
    ][:500]


def _rows(run: Run, asked: Asked, chosen: Sequence[int]) -> list[dict[str, Any]]:
    """Return the problems of a page."""
    numbers, out = ("asked", "solved", "rate", "first", "last"), []
    with run._open() as db:
        named = {"task", "problem"} <= list_columns(db, "rollouts")  # not in a run of format 1
        for i in chosen:
            task, problem = asked.names[i]
            find = f"{task}/{problem}"
            query = "select 1 from rollouts where problem = ? and task = ? limit 1"
            kept = named and db.execute(query, (problem, task)).fetchone() is not None
            out.append({"task": task[:CUT], "problem": problem[:CUT], "kept": kept,
                        "find": find if len(find) <= LONGEST else None,
                        **{name: getattr(asked, name)[i].item() for name in numbers}})  # fmt: skip
    return out


def _read_curricula(run: Run) -> dict[str, str]:
    """Return stage -> its curriculum in the recipe, if it has one."""
    try:
        recipe = run.recipe
    except StoreError:
        return {}
    tables = [("", recipe), *((str(s.get("name", "")), s) for s in recipe.get("stage", ()) if isinstance(s, dict))]
    return {name or "all stages": repr(t["curriculum"])[:2000] for name, t in tables if t.get("curriculum")}

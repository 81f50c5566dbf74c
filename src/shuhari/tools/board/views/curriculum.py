"""What a run asked: how often each problem was asked and solved, and how hard what was asked was, against steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from shuhari.store import Run, StoreError
from shuhari.tools.board.catalogue import Catalogue

BINS = 10  # of solve rates
CUT = 200  # characters of a name
LONGEST = 1000  # characters of a name by which rollouts are found
TASKS = 12  # that have a curve of their own, the most asked ones
Order = Literal["rate", "asked", "solved", "first", "last", "problem", "task"]


@dataclass(frozen=True)
class Asked:
    """A problem, how many samples were asked of it and how many were right, and the first step and the last."""

    task: str
    problem: str
    asked: int
    solved: int
    first: int
    last: int

    @property
    def rate(self) -> float:
        return self.solved / self.asked if self.asked else 0.0


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
) -> dict[str, Any]:
    """{run, curricula, tasks, rates, total, problems}: curricula: stage -> its table of the recipe; tasks: [{task,
    problems, asked, solved, never, always}]; rates: how many problems have a solve rate in each of BINS, equal ones of
    [0, 1]; and a page of those problems that are of a task, have the `words` in their names, and were `never` or
    `always` solved, or something between. `find` names one to the view of rollouts."""
    path = runs.find(run)
    asked = runs.numbers.of(path).keep("problems", lambda: _sum_problems(Run(path)))
    tasks = _describe_tasks(asked)
    wanted = words.lower().split()
    found = [a for a in asked if (not task or a.task == task) and _is_of(a, only)
             and all(word in f"{a.task}/{a.problem}".lower() for word in wanted)]  # fmt: skip
    found.sort(key=lambda a: (getattr(a, order), -a.asked if order == "rate" else 0), reverse=down)
    rates = np.histogram([a.rate for a in found], BINS, (0, 1))[0] if found else np.zeros(BINS, int)
    return {"run": run, "curricula": _read_curricula(Run(path)), "tasks": tasks, "rates": rates, "total": len(found),
            "problems": [_tell(a) for a in found[offset : offset + limit]]}  # fmt: skip


def tell_difficulty(
    runs: Catalogue, run: str, points: Annotated[int, Field(ge=2, le=2000)] = 200
) -> dict[str, dict[str, Any]]:
    """{solved: task -> {x, y}, shares: {x, never, always, between}}: of what each step asked the share that was right,
    by task; and the shares of its problems of which no sample was right, all were, or some. Steps are taken together so
    that there are at most so many points, x the last step of each."""
    path = runs.find(run)
    steps = runs.numbers.of(path).keep("difficulty", lambda: _sum_steps(Run(path)))
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


def _sum_problems(run: Run) -> list[Asked]:
    """Summed by SQLite, as there may be millions of rows; none of a run of format 1."""
    names = "task, problem, sum(asked), sum(solved), min(step), max(step)"
    return [Asked(*row) for row in _query(run, f"select {names} from problems group by task, problem")]


def _sum_steps(run: Run) -> list[tuple[Any, ...]]:
    """(step, task, asked, solved, problems, those never solved, those always) of each step and task."""
    names = "step, task, sum(asked), sum(solved), count(*), sum(solved = 0), sum(solved = asked and asked > 0)"
    return _query(run, f"select {names} from problems where asked > 0 group by step, task")


def _query(run: Run, query: str) -> list[tuple[Any, ...]]:
    with run._open() as db:
        there = db.execute("select 1 from sqlite_master where name = 'problems'").fetchone()
        rows = db.execute(query).fetchall() if there else []
    odd = next((r for r in rows for x in r if not isinstance(x, int | str)), None)
    if odd is not None:
        raise StoreError(f"{run.path}: a count of problems is damaged ({odd!r:.80})")
    return rows


def _describe_tasks(asked: list[Asked]) -> list[dict[str, Any]]:
    by: dict[str, list[Asked]] = defaultdict(list)
    for a in asked:
        by[a.task].append(a)
    return [{"task": task[:CUT], "problems": len(found), "asked": sum(a.asked for a in found),
             "solved": sum(a.solved for a in found), "never": sum(_is_of(a, "never") for a in found),
             "always": sum(_is_of(a, "always") for a in found)} for task, found in by.items()][:500]  # fmt: skip


def _is_of(a: Asked, only: str) -> bool:
    return only in ("", "never" if a.solved == 0 else "always" if a.solved == a.asked else "between")


def _tell(a: Asked) -> Mapping[str, Any]:
    find = f"{a.task}/{a.problem}"
    return {"task": a.task[:CUT], "problem": a.problem[:CUT], "asked": a.asked, "solved": a.solved, "rate": a.rate,
            "first": a.first, "last": a.last, "find": find if len(find) <= LONGEST else None}  # fmt: skip


def _read_curricula(run: Run) -> dict[str, str]:
    """Stage -> what the recipe says of its curriculum, as far as it says something."""
    try:
        recipe = run.recipe
    except StoreError:
        return {}
    tables = [("", recipe), *((str(s.get("name", "")), s) for s in recipe.get("stage", ()) if isinstance(s, dict))]
    return {name or "all stages": repr(t["curriculum"])[:2000] for name, t in tables if t.get("curriculum")}

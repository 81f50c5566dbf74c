"""What a list of runs shows beside their summaries: a small curve of the score, and what is found wrong."""

from __future__ import annotations

import numpy as np

from shuhari.lab.diagnosis import diagnose
from shuhari.store import Run, StoreError
from shuhari.store.listing import Summary
from shuhari.store.rows import read_rows

POINTS = 40  # of a small curve
LOOKED = 200  # steps that are looked at, where the score is among most of them
CHANGES, LONG = 20, 120  # settings of a list; characters of one
JUDGED = 5000  # steps of a run that is judged for a list
UNREADABLE = StoreError, ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError


def sketch(run: Summary) -> list[float]:
    """At most POINTS values of the score that its summary names, in the order of steps; none where it cannot be read.
    """
    if not run.score_name or run.step < 0:
        return []
    try:
        steps = _find_steps(Run(run.path), run.score_name, run.step)
        values = [x for _, x in steps]
        places = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).astype(int))
        return [float(f"{values[i]:.4g}") for i in places.tolist()]
    except (StoreError, ValueError, OverflowError):
        return []


def list_changes(run: Summary) -> list[str]:
    """The settings, CHANGES at most, in which a run differs from the recipe of its name in the library, or why they
    could not be compared; none where that has no such, or the run tells no name."""
    from shuhari.desk.board.views.run import compare_recipes

    if not run.recipe:
        return []
    try:
        found = next(compare_recipes(run.path, run.recipe), None) or {"changes": [], "problem": ""}
    except UNREADABLE as error:
        found = {"changes": [], "problem": str(error)}
    if found["problem"]:
        return [f"not compared: {found['problem']}"[:LONG]]
    return [f"{c['path']}={c['here']}"[:LONG] for c in found["changes"][:CHANGES]]


def name_findings(run: Summary) -> list[tuple[str, str, bool]] | None:
    """(rule, stage, whether it is an alarm) of each finding that `shuhari diagnose` has of a run; None where it has too
    many steps to be asked in passing, or cannot be read."""
    try:
        opened = Run(run.path)
        with opened._open() as db:
            (n,) = db.execute("select count(*) from steps").fetchone()
        if n > JUDGED:
            return None
        found = diagnose(opened.metrics(), opened.recipe, opened.get("began", {}))
        return [(f.rule.name, f.stage, f.rule.at_once) for f in found]
    except UNREADABLE:
        return None


def _find_steps(run: Run, name: str, last: int) -> list[tuple[int, float]]:
    """(step, value): of some steps, evenly, where most have the metric; else of all that have it."""
    wanted = sorted({*np.linspace(0, last, LOOKED + 1).astype(int).tolist()})
    some = _read(run, name, f"where step in ({', '.join('?' * len(wanted))}) order by step", wanted)
    if len(some) >= POINTS // 2 or last <= LOOKED:
        return some
    has = f"where instr(metrics, ?) > 0 and step > ? order by step limit {10 * LOOKED}"  # evaluations are rare
    return _read(run, name, has, [f'"{name}":', -1]) or some


def _read(run: Run, name: str, where: str, args: list[object]) -> list[tuple[int, float]]:
    with run._open() as db:
        rows = list(read_rows(db, "steps", where, args))
    found = ((step, run._parse(f"step {step}", text, dict).get(name)) for step, _, _, text in rows)
    return [(step, float(x)) for step, x in found if isinstance(x, int | float) and np.isfinite(x)]


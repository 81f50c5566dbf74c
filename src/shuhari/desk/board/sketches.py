"""Additions to a list of runs: a small curve of the score, changed settings, and findings."""

from __future__ import annotations

import numpy as np

from shuhari.lab.diagnosis import diagnose
from shuhari.store import Run, StoreError
from shuhari.store.listing import Summary
from shuhari.store.rows import read_rows

POINTS = 40  # of a small curve
LOOKED = 200  # steps that are read, if most of them have the score
CHANGES, LONG = 20, 120  # settings of a list; characters of one
JUDGED = 5000  # steps of a run that is diagnosed for a list
UNREADABLE = StoreError, ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError


def sketch(run: Summary) -> list[float]:
    """Return at most POINTS values of the score named in the summary, in order of steps; empty if it cannot be read."""
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
    """Return at most CHANGES settings in which a run differs from the packaged recipe of its name, or why they could
    not be compared; empty if there is no such recipe, or the run has no name."""
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
    """Return (rule, stage, whether it is an alarm) of each finding of `shuhari diagnose`; None if the run has too many
    steps for a list, or cannot be read."""
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
    """Return (step, value) at evenly spaced steps if most have the metric; otherwise at all steps that have it."""
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


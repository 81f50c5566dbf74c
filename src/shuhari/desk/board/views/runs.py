"""The list of runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from shuhari.desk.board.catalogue import AT_ONCE, PENDING, Catalogue, name_doctor
from shuhari.desk.board.sketches import list_changes, name_findings, sketch
from shuhari.lab.plot import name_metric
from shuhari.store.listing import STATUSES, Summary

NOTE = 500  # characters of why a run failed

Order = Literal["date", "name", "recipe", "task", "status", "step", "score"]


def list_runs(
    runs: Catalogue,
    words: str = "",
    status: str = "",
    order: Order = "date",
    down: bool = True,
    limit: Annotated[int, Field(ge=1, le=1000)] = 100,
    offset: Annotated[int, Field(ge=0)] = 0,
    wait: bool = False,
    all: bool = False,
) -> dict[str, Any]:
    """Return {root, total, hidden, pending, left_out, runs}: `limit` runs from `offset` on, of those with all `words`
    in name, recipe, task, status or tags (`tag:x`: the tag x), sorted by `order`. `pending`: number of runs not read
    yet (with `wait` 0); `left_out`: why some are not listed. `curve`: some values of the score; `score_of`: its name;
    `changes`: [setting=value] that differ from the packaged recipe of its name, or why they could not be compared;
    `findings`: [rule, stage, whether it is an alarm] of `diagnose`; null if not read yet. `all`: include runs made by
    claims and studies; otherwise `hidden` counts them."""
    found = runs.choose(words.split(), status, wait=wait, children=all)
    if (order, down) != ("date", True):
        found.sort(key=lambda r: _get_key(r, order), reverse=down)
    shown = found[offset : offset + limit]
    pending = sum(r.status == PENDING for r in found)
    seconds = float("inf") if wait else AT_ONCE / 4 if pending else AT_ONCE  # summaries first
    made = runs.make("list", shown, lambda r: {"curve": sketch(r), "changes": list_changes(r)}, seconds)
    judged = runs.make("findings", shown, name_findings, seconds)
    rows = [
        {**_describe_run(r), **made.get(r.name, {"curve": None, "changes": None}), "findings": judged.get(r.name)}
        for r in shown
    ]
    counts = {"total": len(found), "hidden": 0 if all else runs.count_children(), "pending": pending}
    return {"root": runs.root, **counts, "left_out": runs.explain_left_out(), "runs": rows}


def _get_key(run: Summary, order: str) -> tuple[bool, Any]:
    value = getattr(run, order)
    return value not in (None, ""), value if value not in (None, "") else 0 if order in ("step", "score") else ""


def _describe_run(run: Summary) -> dict[str, Any]:
    names = ("name", "status", "step", "total", "score", "score_name", "recipe", "task", "date", "tags")
    bad = run.status == STATUSES[-1]
    note = name_doctor(run.note[:NOTE], run.path) if bad else run.note[:NOTE]
    word = name_metric(run.score_name, run.measure) if run.score_name else ""
    return {**{name: getattr(run, name) for name in names}, "score_of": word, "note": note}

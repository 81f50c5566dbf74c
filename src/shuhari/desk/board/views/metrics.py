"""The board's metrics for Prometheus, in its text format 0.0.4."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping

from shuhari.desk.board.catalogue import PENDING, Catalogue
from shuhari.desk.board.sketches import name_findings
from shuhari.desk.board.views.picture import Picture
from shuhari.store import StoreError
from shuhari.store.directory import read_change_time
from shuhari.store.listing import STATUSES, Summary

KIND = "text/plain; version=0.0.4; charset=utf-8"
FAMILIES = {  # name -> description
    "shuhari_run_status": "1 for the state that a run is in, 0 for the others",
    "shuhari_run_step": "the last step that is stored",
    "shuhari_run_steps_total": "the steps that a run is to make",
    "shuhari_run_score": "the last score, held-out where there is one",
    "shuhari_run_findings": "how many things the rules of `shuhari diagnose` find wrong",
    "shuhari_run_finding": "1 for each of these; alarm: whether training tells it at once",
    "shuhari_run_idle_seconds": "seconds since a run was last written to",
}
LONG = 200  # characters of a label


def describe_metrics(runs: Catalogue) -> Picture:
    """Return the state of each run that was read so far."""
    known = [r for r in runs.choose() if r.status != PENDING]
    findings = runs.make("findings", known, name_findings)
    lines: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for run in known:
        for name, more, value in _measure(run, findings):
            try:
                number = _write(value)
            except OverflowError:  # a whole number too large for a float
                continue
            labels = {"run": run.name, "recipe": run.recipe, "task": run.task, **more}
            text = ",".join(f'{k}="{escape(v)}"' for k, v in labels.items())
            lines[name].append(f"{name}{{{text}}} {number}")
    out = [line for name, found in lines.items() if found
           for line in (f"# HELP {name} {FAMILIES[name]}", f"# TYPE {name} gauge", *found)]  # fmt: skip
    return Picture(("\n".join(out) + "\n").encode("utf-8", "backslashreplace"), KIND)


def _measure(
    run: Summary, findings: Mapping[str, list[tuple[str, str, bool]] | None]
) -> Iterable[tuple[str, Mapping[str, str], float]]:
    """Yield (family, labels, value)."""
    yield from (("shuhari_run_status", {"status": s}, float(s == run.status)) for s in STATUSES)
    if run.step >= 0:
        yield "shuhari_run_step", {}, run.step
    if isinstance(run.total, int | float):
        yield "shuhari_run_steps_total", {}, run.total
    if run.score is not None:
        yield "shuhari_run_score", {"score": run.score_name}, run.score
    if (found := findings.get(run.name)) is not None:
        yield "shuhari_run_findings", {}, len(found)
        for rule, stage, alarm in found:
            yield "shuhari_run_finding", {"rule": rule, "stage": stage, "alarm": str(alarm).lower()}, 1.0
    try:
        yield "shuhari_run_idle_seconds", {}, max(0.0, time.time() - read_change_time(run.path))
    except (OSError, ValueError, StoreError):  # it was removed meanwhile
        return


def escape(label: str) -> str:
    """Escape the value of a label."""
    text = label if len(label) <= LONG else f"{label[:LONG]}…"
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _write(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"

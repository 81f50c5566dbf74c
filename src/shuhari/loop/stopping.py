"""Ways to end a run before its budget is spent: `Stop`, which any callback that gets reports may raise, and
`stop_when`.

A stopped run is complete, with a note of why, and was saved as it was after its last step: if it continues from there
it has the bits of a run that was never stopped. Scores that were not due then are measured once it is saved.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from shuhari.config.overlay import RecipeError
from shuhari.config.stage import Components
from shuhari.config.stopping import PLAYED
from shuhari.data import Info
from shuhari.loop.progress import Progress
from shuhari.store import Run as Stored
from shuhari.store import Store

ASKED = "a callback asked for it"


class Stop(Exception):
    """Raised in a callback (`progress`, `observe`) ends the run after the step at hand: it is saved and complete, with
    the text as the note of why, as `shuhari.Stop("good enough")`."""

    def __str__(self) -> str:
        return super().__str__() or ASKED


def end(reports: Iterator[Info], why: str) -> None:
    """End the run of these reports after the last one that it gave."""
    with suppress(StopIteration, Stop):
        reports.throw(Stop(why))  # type: ignore[attr-defined]


def look(progress: Progress, report: Mapping[str, Any]) -> str:
    """End the stage if its `stop_when` holds for this report, noting why. Returns a message if the first report lacks
    the metric, with the nearest one; else ""."""
    stop = progress.stage.stop
    if stop is None:
        return ""
    if why := stop.ask(report, progress.seen):
        progress.ended = why
    elif progress.steps == 1 and stop.metric not in report and not stop.metric.startswith(PLAYED):
        known = [name for name, x in report.items() if isinstance(x, int | float)]
        return f"stop_when: {stop.explain_missing(known)} (others may be reported later)"
    return ""


def check_measured(stage: Components, scores: Mapping[str, float]) -> None:
    """Raise RecipeError if `stop_when` names a held-out number that the first evaluation of the stage does not have."""
    stop, known = stage.stop, [f"{PLAYED}{name}" for name in scores]
    if stop is None or not stop.metric.startswith(PLAYED) or stop.metric in known:
        return
    nothing = f"nothing is measured in stage {stage.name!r}: set evaluate.n to a number of problems"
    raise RecipeError("stop_when", stop.explain_missing(known) if known else f"{stop.metric}: {nothing}")


def name_condition(stage: Components) -> str:
    """Return the condition under which a stage ends: a run resumed under another one is not at its end any more."""
    return json.dumps([stage.stop.text if stage.stop else "", dict(stage.budget)], sort_keys=True)


def write_end(progress: Progress) -> dict[str, Any]:
    """Return how a stage was ended before its budget was spent, for a checkpoint; empty if it was not."""
    state: dict[str, Any] = {"seen": dict(progress.seen)} if progress.seen else {}
    if progress.ended:
        state |= {"why": progress.ended, "all": progress.halted, "under": name_condition(progress.stage)}
    return state


def read_end(progress: Progress, saved: Mapping[str, Any], *, anew: bool) -> None:
    """Restore the result of `write_end`. The end of the stage counts only under the same condition and budget, and not
    if the run goes on `anew` from there."""
    progress.seen = dict(saved.get("seen", {}))
    if not anew and saved.get("under") == name_condition(progress.stage):
        progress.ended, progress.halted = saved["why"], saved["all"]


def is_stop(key: str) -> bool:
    """Whether a dotted key sets when a run, or a stage of it, ends early: a run may be resumed under another value."""
    return key.rpartition(".")[2] == "stop_when"


def reopen(path: Path) -> bool:
    """Let a stopped run go on, with the rest of its budget; False if it was not stopped."""
    if not Stored(path).get("stopped"):
        return False
    with Store.open(path) as store:
        store.set(complete=False, stopped="", goes_on=store.step)
    logging.getLogger("shuhari").info("%s goes on from step %s", path, store.step)
    return True

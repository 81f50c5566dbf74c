"""Curves of a run: its stored numbers over steps, time, or amounts spent, thinned but keeping the smallest and largest
value of each segment; also as a plot or as CSV."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from shuhari.data import Array
from shuhari.desk.board.catalogue import Catalogue
from shuhari.desk.board.numbers import Steps
from shuhari.desk.board.views.picture import Flow, Picture
from shuhari.desk.serving.refusals import Refused
from shuhari.store import Run

SECONDS = "seconds"  # of a step: a curve derived from the stored `wall`
HELD_OUT = "Held-out score"
CHARTS = (  # charts on a run's page: title, patterns; only those with `evaluate/` match held-out metrics
    ("Reward", ("reward/mean", "reward/score", "rollout/return")),
    (HELD_OUT, ("evaluate/greedy", "evaluate/mean", "evaluate/score", "evaluate/*/accuracy", "evaluate/pass*")),
    ("Length", ("rollout/length", "evaluate/length")),
    ("Entropy", ("rollout/entropy", "*/entropy")),
    ("KL", ("*/kl", "*/approx_kl")),
    ("Clip fraction", ("*/clip_fraction",)),
    ("Train/inference log-prob gap", ("engine/gap", "engine/gap_max")),
    ("Staleness", ("rollout/staleness",)),
    ("Groups alike", ("rollout/alike",)),
    ("Losses", ("*/loss/*",)),
    ("Gradient norm", ("*/grad_norm",)),
    ("Learning rate", ("*/lr",)),
    ("Time of a step", (SECONDS,)),
)
LINES = 8  # curves of a chart
NAMED = 60  # curves of a request
NAME = 80  # characters of a reward's name
ROWS = 1000  # rows of a table that are read at a time


def describe_curves(
    runs: Catalogue,
    run: str,
    names: list[str] = [],  # noqa: B006 (never changed)
    x: str = "step",
    after: int = -1,
    version: int = 0,
    points: Annotated[int, Field(ge=20, le=5000)] = 2000,
) -> dict[str, Any]:
    """Return {run, status, x, axes, version, last, read, whole, known, names, charts, stages, curves}: for each of
    `names` (default: those of CHARTS) {x, y, n, odd}: at most `points` values over the axis `x`, of steps later than
    `after`; n: number of values; odd: number of those that are not finite, which are left out. `after` applies only to
    the same `version`: for another run, or one that was repeated, everything is returned, as for -1. Without `whole`
    the steps are still being read, and these are a sample."""
    path = runs.find(run)
    steps = runs.numbers.of(path).read_steps()
    axes = list_axes(steps)
    if x not in axes:
        raise Refused(f"x is {x!r:.80}: expected one of {', '.join(axes[:20])}", "x")
    if len(names) > NAMED:
        raise Refused(f"{len(names)} names: expected at most {NAMED}", "names")
    fresh = after < 0 or version != steps.version or not steps.whole
    charts = choose_charts(steps, str(Run(path).get("measure") or "")[:NAME])
    wanted = names or list(dict.fromkeys(
        n
        for c in charts
        for n in c["names"]
    ))
    begin = 0 if fresh else int(np.searchsorted(steps.step, after, side="right"))
    place, curves = find_axis(steps, x, "evaluate/"), {}
    for name in wanted:
        column, at = find_column(steps, name), find_axis(steps, x, name)
        if column is not None and at is not None:
            curves[name] = _thin(at[begin:], column[begin:], points)
    stages = [{"name": name[:200], "step": int(steps.step[at]), "x": _get(place, at)} for name, at in steps.stages]
    told = {"names": sorted(steps.columns), "charts": charts, "stages": stages[:200]} if fresh else {}
    return {"run": run, "status": Run(path).status, "x": x, "axes": axes, "version": steps.version, "last": steps.last,
            "read": len(steps.step), "whole": steps.whole, "known": len(steps.columns) + len(steps.stages),
            "fresh": fresh, **told, "curves": curves}  # fmt: skip


def draw_run(runs: Catalogue, run: str, kind: Literal["png", "svg"] = "png") -> Picture:
    """Return the plot that `shuhari train` leaves in the run's folder, for the steps so far."""
    from shuhari.desk.ends import draw
    from shuhari.lab.plot import choose_curves

    path = runs.find(run)
    steps, opened = runs.numbers.of(path).read_steps(30), Run(path)
    shown = [*choose_curves(steps.columns).values(), *(n for n in steps.columns if n.startswith("spent/"))]
    out = io.BytesIO()
    try:
        draw(opened.recipe, steps.to_lists(shown), opened.summary or {}, out, kind)
    except ValueError as error:
        raise Refused(str(error)) from None
    return Picture(out.getvalue(), "image/png" if kind == "png" else "image/svg+xml")


def write_table(runs: Catalogue, run: str) -> Flow:
    """Return all metrics of all steps as CSV, as `shuhari show RUN --csv`, with ROWS of them in memory at a time."""
    opened = Run(runs.find(run))
    names, last = dict.fromkeys(("step", "stage", "wall")), -1
    for part in _read_parts(opened):  # all names, and any damage, before anything is sent
        names.update(dict.fromkeys(part))
        last = part["step"][-1]
    return Flow(_write_parts(opened, list(names), last), "text/csv")


def _read_parts(opened: Run) -> Iterator[dict[str, list[Any]]]:
    after = -1
    while (part := opened.metrics(after, ROWS))["step"]:
        yield part
        after = part["step"][-1]


def _write_parts(opened: Run, names: Sequence[str], last: int) -> Iterator[bytes]:
    """Yield CSV of some metrics, up to the step `last`: the run may continue meanwhile, with other metrics."""
    from shuhari.lab.plot import write_csv

    head: dict[str, list[Any]] = {name: [] for name in names}
    for i, part in enumerate(chain([head], _read_parts(opened))):
        n = int(np.searchsorted(part["step"], last, side="right"))
        out, none = io.StringIO(), [None] * n
        write_csv({name: part.get(name, none)[:n] for name in names}, out, head=i == 0)
        yield out.getvalue().encode("utf-8", "backslashreplace")
        if n < len(part["step"]):
            return


def choose_charts(steps: Steps, measure: str = "") -> list[dict[str, Any]]:
    """Return [{title, names}] of the CHARTS whose metrics a run has, and of the reports of its curriculum and study.
    Metrics by task (`name@task`) are only found by search. measure: the reward of the held-out scores."""
    there = [*(n for n in steps.columns if "@" not in n or "pass@" in n), *([SECONDS] if len(steps.step) > 1 else [])]
    out = []
    for title, patterns in CHARTS:
        found = [
            n
            for p in patterns
            for n in there
            if fnmatchcase(n, p) and _is_held_out(p) == _is_held_out(n)
        ]
        if found:
            of = f": {measure}" if measure and title == HELD_OUT else ""
            out.append({"title": f"{title}{of}", "names": list(dict.fromkeys(found))[:LINES]})
    own: dict[str, list[str]] = {}
    for name in (n for n in steps.columns if n.startswith(("curriculum/", "study/"))):
        own.setdefault(name.partition("@")[0], []).append(name)  # `curriculum/share@<level>`: one chart for all levels
    return [*out, *({"title": title, "names": names[:LINES]} for title, names in [*own.items()][: 2 * LINES])]


def _is_held_out(name: str) -> bool:
    return name.startswith("evaluate/")


def list_axes(steps: Steps) -> list[str]:
    """Return the possible axes: steps, seconds, and amounts spent."""
    spent = sorted(n for n in steps.columns if n.startswith("spent/") and n != "spent/steps")
    return ["step", *(["wall"] if "wall" in steps.columns else []), *spent]


def find_axis(steps: Steps, x: str, name: str) -> Array | None:
    """Return [n] places of a metric on an axis; None if there is no such axis. If a counter starts late, the step
    before it is placed at x = 0, where the curve begins; for the end of a previous stage this applies only to
    evaluations."""
    place = find_column(steps, x)
    if place is None or not x.startswith("spent/") or not np.isfinite(place).any():
        return place
    first = int(np.isfinite(place).argmax())
    if first == 0 or (not _is_held_out(name) and first in (row for _, row in steps.stages)):
        return place
    return np.concatenate([place[: first - 1], [0.0], place[first:]])


def find_column(steps: Steps, name: str) -> Array | None:
    """Return [n] values of a metric, of `step`, `wall`, or of the seconds between two steps; None if it does not
    exist."""
    if name == "step":
        return steps.step.astype(np.float64)
    if name == SECONDS and name not in steps.columns and "wall" in steps.columns:
        took = np.diff(steps.columns["wall"], prepend=np.nan) / np.diff(steps.step, prepend=-1)
        return np.where(took >= 0, took, np.nan)  # the clock of a resumed run continues
    return steps.columns.get(name)


def thin(y: Array, points: int) -> Array:
    """Return the indices of at most `points` values: the smallest and largest of each segment, and the first and last
    of all."""
    n = len(y)
    if n <= points:
        return np.arange(n)
    stretches = max(1, (points - 2) // 2)
    size = -(-n // stretches)
    padded = np.full(stretches * size, np.nan)
    padded[:n] = y
    rows = padded.reshape(stretches, size)[: -(-n // size)]
    begin = np.arange(len(rows)) * size
    low = np.nanargmin(np.where(np.isnan(rows), np.inf, rows), 1)
    high = np.nanargmax(np.where(np.isnan(rows), -np.inf, rows), 1)
    return np.unique(np.concatenate([[0, n - 1], begin + low, begin + high]))


def _thin(x: Array, y: Array, points: int) -> dict[str, Any]:
    n, odd = int((~np.isnan(y)).sum()), int(np.isinf(y).sum())
    good = np.isfinite(y) & np.isfinite(x)
    x, y = x[good], y[good]
    kept = thin(y, points)
    return {"x": _shorten(x[kept]), "y": _shorten(y[kept]), "n": n, "odd": odd}


def _shorten(values: Array) -> Sequence[float]:
    """Round to six digits, enough for a curve; whole numbers stay."""
    return [v if v.is_integer() else float(f"{v:.6g}") for v in values.tolist()]


def _get(place: Array | None, at: int) -> float | None:
    return None if place is None or not np.isfinite(place[at]) else float(place[at])

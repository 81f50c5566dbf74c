"""Curves of a run: its stored numbers against steps, time, or what was spent; thinned, with each stretch's smallest and
largest value kept; and the same as a picture or as CSV."""

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

SECONDS = "seconds"  # of a step: a curve that is made of the stored `wall`
HELD_OUT = "Held-out score"
CHARTS = (  # what a page of a run shows: title, patterns of metrics; of `evaluate/` those whose pattern says so
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
NAMED = 60  # curves of a question
NAME = 80  # characters of a reward's name
ROWS = 1000  # of a table that are read at once


def tell_curves(
    runs: Catalogue,
    run: str,
    names: list[str] = [],  # noqa: B006 (never changed)
    x: str = "step",
    after: int = -1,
    version: int = 0,
    points: Annotated[int, Field(ge=20, le=5000)] = 2000,
) -> dict[str, Any]:
    """{run, status, x, axes, version, last, read, whole, known, names, charts, stages, curves}: for each of `names` (by
    default those of CHARTS) {x, y, n, odd}: at most `points` values over the axis `x`, of steps later than `after`; n:
    values in all, odd: those of them that are not finite, which are left out. `after` counts for the same `version`
    alone: of another run, or one that was made again, all comes, as where it is -1. Without `whole` the steps are still
    being read, and some stand for all."""
    path = runs.find(run)
    steps = runs.numbers.of(path).look()
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
    """The picture of a run as `shuhari train` leaves it in its folder, of the steps so far."""
    from shuhari.desk.ends import draw
    from shuhari.lab.plot import choose_curves

    path = runs.find(run)
    steps, opened = runs.numbers.of(path).look(30), Run(path)
    shown = [*choose_curves(steps.columns).values(), *(n for n in steps.columns if n.startswith("spent/"))]
    out = io.BytesIO()
    try:
        draw(opened.recipe, steps.to_lists(shown), opened.summary or {}, out, kind)
    except ValueError as error:
        raise Refused(str(error)) from None
    return Picture(out.getvalue(), "image/png" if kind == "png" else "image/svg+xml")


def write_table(runs: Catalogue, run: str) -> Flow:
    """All metrics of all steps as CSV, as `shuhari show RUN --csv`, ROWS of them in memory at a time."""
    opened = Run(runs.find(run))
    names, last = dict.fromkeys(("step", "stage", "wall")), -1
    for part in _read_parts(opened):  # all names, and whatever is damaged, before anything is sent
        names.update(dict.fromkeys(part))
        last = part["step"][-1]
    return Flow(_write_parts(opened, list(names), last), "text/csv")


def _read_parts(opened: Run) -> Iterator[dict[str, list[Any]]]:
    after = -1
    while (part := opened.metrics(after, ROWS))["step"]:
        yield part
        after = part["step"][-1]


def _write_parts(opened: Run, names: Sequence[str], last: int) -> Iterator[bytes]:
    """CSV of some metrics, of the steps up to `last`: a run may go on meanwhile, with other metrics."""
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
    """[{title, names}] of CHARTS: those whose metrics a run has, and what its curriculum and its study report; what was
    measured by task (`name@task`) is left to the search. measure: the reward that held-out scores are of."""
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
        own.setdefault(name.partition("@")[0], []).append(name)  # `curriculum/share@<level>`: a chart for all levels
    return [*out, *({"title": title, "names": names[:LINES]} for title, names in [*own.items()][: 2 * LINES])]


def _is_held_out(name: str) -> bool:
    return name.startswith("evaluate/")


def list_axes(steps: Steps) -> list[str]:
    """What curves may be drawn over: steps, seconds, and what was spent."""
    spent = sorted(n for n in steps.columns if n.startswith("spent/") and n != "spent/steps")
    return ["step", *(["wall"] if "wall" in steps.columns else []), *spent]


def find_axis(steps: Steps, x: str, name: str) -> Array | None:
    """[n] places of a metric on an axis; None where there is none. Where what is counted was not yet, the last step
    before it was stands at 0: what was measured there is where the curve begins. Of the end of the stage before that
    is so of evaluations alone."""
    place = find_column(steps, x)
    if place is None or not x.startswith("spent/") or not np.isfinite(place).any():
        return place
    first = int(np.isfinite(place).argmax())
    if first == 0 or (not _is_held_out(name) and first in (row for _, row in steps.stages)):
        return place
    return np.concatenate([place[: first - 1], [0.0], place[first:]])


def find_column(steps: Steps, name: str) -> Array | None:
    """[n] values of a metric, of `step`, `wall`, or of the seconds between two steps; None where there is none."""
    if name == "step":
        return steps.step.astype(np.float64)
    if name == SECONDS and name not in steps.columns and "wall" in steps.columns:
        took = np.diff(steps.columns["wall"], prepend=np.nan) / np.diff(steps.step, prepend=-1)
        return np.where(took >= 0, took, np.nan)  # the clock of a resumed run goes on
    return steps.columns.get(name)


def thin(y: Array, points: int) -> Array:
    """The places of at most `points` values: of each stretch the smallest and the largest, of all the first and the
    last."""
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
    """Six digits, as none sees more of a curve; whole numbers as they are."""
    return [v if v.is_integer() else float(f"{v:.6g}") for v in values.tolist()]


def _get(place: Array | None, at: int) -> float | None:
    return None if place is None or not np.isfinite(place[at]) else float(place[at])

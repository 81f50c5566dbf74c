"""Sets of runs side by side: curves, last values, differences with intervals, and differing settings."""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shuhari.data import nearest
from shuhari.desk import comparison
from shuhari.desk.board.catalogue import Catalogue, Stamp, read_stamp
from shuhari.desk.board.views.picture import Picture
from shuhari.desk.comparison import GREEDY, Columns
from shuhari.desk.contrasts import compare_with_first, explain_levels, find_stuck, find_word
from shuhari.desk.serving.refusals import Refused
from shuhari.kernel import stats
from shuhari.lab.claims.curve import Reading
from shuhari.lab.claims.verdict import LEAST
from shuhari.lab.plot import average_curves, choose_curves, plot_comparison, read_curve
from shuhari.store import Run

RUNS, ARMS, POINTS, TEXT, SETTINGS, LONG = 200, 12, 1000, 200, 300, 500
NUMBERS = 8_000_000  # numbers that are cached for all runs together, at about 32 bytes each
PLAIN = ("step", "wall")  # axes that every run has
Arms = dict[str, list[Path]]

_kept: dict[tuple[Path, tuple[str, ...]], tuple[Stamp, tuple[Columns, list[str]]]] = {}
_lock = threading.Lock()


def compare_runs(runs: Catalogue, arm: list[str], metric: str = "", x: str = "") -> dict[str, Any]:
    """Return {metric, curve, reading, readings, x, axes, metrics, arms, caveats, differs}: arms of runs joined by
    commas, each compared with the first as in `shuhari compare`: last values or readings of their curves, their mean,
    difference and interval over seeds; also the interquartile mean, the performance profile, and a curve with the range
    of its runs. metric: a metric, or a reading of it such as `evaluate/mean:area`; default the held-out score, or the
    first curve that all runs have. x: step, wall or spent/* (default: the budget's unit), over which a reading is read.
    """
    metric = metric or _choose_metric(runs, arm)
    reading = _parse(metric)
    curve = reading.metric if reading else metric
    arms, columns, names, over, axes = _read_arms(runs, arm, reading.names if reading else (metric,), x)
    try:
        comparison.check_same_task([
            path
            for paths in arms.values()
            for path in paths
        ])
        finals = comparison.read_finals(arms, columns, metric, over)
    except comparison.ComparisonError as error:
        raise Refused(str(error)) from None
    found = compare_with_first(finals, LEAST)
    labels = comparison.name_arms(arms)
    every = [
        v
        for values, _ in finals.values()
        for v in values
        if v == v
    ]
    at = _place_thresholds(every)
    named = {labels[name]: entry for name, entry in found.items()}
    caveats = comparison.list_caveats(named, single=False)
    caveats += filter(None, (explain_levels(named, next(iter(named))), find_stuck(named, metric)))
    if all(len(paths) == 1 for paths in arms.values()) and metric.startswith(GREEDY) and len(arms) > 1:
        caveats.append("of single runs `shuhari compare` evaluates both anew, on the same problems, with an interval "
                       "over these")  # fmt: skip
    told = []
    for name, paths in arms.items():
        values, seeds = finals[name]
        order = sorted(range(len(paths)), key=lambda i: comparison.read_seed(paths[i]))
        rows = [{"run": _name(runs, paths[i]), "seed": seeds[k], "value": values[k]} for k, i in enumerate(order)]
        middle = stats.bootstrap_interquartile_mean(values)
        known, ends = middle.n >= LEAST, {"low": middle.low, "high": middle.high}
        told.append({
            "arm": name, "label": labels[name], "runs": rows, **found[name], "word": find_word(found[name]),
            "iqm": {"value": middle.value, "low": None, "high": None, **(ends if known else {})},
            "profile": stats.profile_performance(values, at) if known else None,
            "curve": _make_curve(columns[name], curve, over),
        })  # fmt: skip
    recipes = {
        name: [Run(path).recipe for path in paths]
        for name, paths in arms.items()
    }
    differs = [{"setting": key, "values": [_show(values[name]) for name in arms]}
               for key, values in comparison.find_differences(recipes).items()]  # fmt: skip
    caveats += comparison.list_uneven(columns, over) if reading else []
    choice = {"curve": curve, "reading": metric.partition(":")[2], "readings": comparison.READINGS}
    return {"metric": metric, **choice, "x": over, "axes": axes, "metrics": names, "arms": told, "thresholds": at,
            "caveats": caveats, "differs": differs[:SETTINGS], "left_out": max(0, len(differs) - SETTINGS)}  # fmt: skip


def plot_sides(
    runs: Catalogue, arm: list[str], metric: str = "", x: str = "", kind: Literal["png", "svg"] = "svg"
) -> Picture:
    """Return the curves of the arms as drawn by `shuhari compare --plot`; of a reading, the curves that it reads."""
    metric = (metric or _choose_metric(runs, arm)).partition(":")[0]
    arms, columns, _, over, _ = _read_arms(runs, arm, (metric,), x)
    labels, out = comparison.name_arms(arms), io.BytesIO()
    try:
        plot_comparison({labels[name]: columns[name] for name in arms}, metric, out, over=over, kind=kind)
    except KeyError as error:
        raise Refused(str(error.args[0]), "metric") from None
    return Picture(out.getvalue(), {"png": "image/png", "svg": "image/svg+xml"}[kind])


def group_runs(runs: Catalogue, run: list[str]) -> dict[str, Any]:
    """Return {arms, left_out}: runs grouped by recipe, except for seeds; left_out: those whose seed another run of the
    arm has."""
    found = {name: Run(path).recipe for name, path in zip(run, _find(runs, run), strict=True)}
    groups, left = comparison.group_by_recipe(found)
    return {"arms": [",".join(names) for names in groups], "left_out": left}


def _read_arms(
    runs: Catalogue, arm: Sequence[str], wanted: Sequence[str], x: str
) -> tuple[Arms, dict[str, list[Columns]], list[str], str, list[str]]:
    """Return (paths of each arm, their columns of the `wanted` metrics, the names of all metrics, the axis, the axes
    that all runs have)."""
    named = {
        text: [name for name in text.split(",") if name]
        for text in arm
    }
    named = {text: names for text, names in named.items() if names}
    if not named or len(named) > ARMS:
        raise Refused(f"{len(named)} arms: expected 1 to {ARMS}, each of runs joined by commas", "arm")
    if (many := sum(map(len, named.values()))) > RUNS:
        raise Refused(f"{many} runs: expected at most {RUNS}", "arm")
    arms = {text: _find(runs, names) for text, names in named.items()}
    found = {
        text: [_read(path, tuple(wanted)) for path in paths]
        for text, paths in arms.items()
    }
    columns = {
        text: [one for one, _ in some]
        for text, some in found.items()
    }
    lists = [
        names
        for some in found.values()
        for _, names in some
    ]
    axes = [
        *PLAIN,
        *(
            n
            for n in lists[0]
            if n.startswith("spent/") and all(n in names for names in lists)
        ),
    ]
    over = x or comparison.find_axis(
        columns,
        [
            path
            for paths in arms.values()
            for path in paths
        ],
    )
    if over not in axes:
        if x:
            raise Refused(f"not all runs have {x[:TEXT]!r}; {nearest(x[:TEXT], axes)}", "x")
        over = "step"
    return (
        arms,
        columns,
        sorted({
            n
            for names in lists
            for n in names
        }),
        over,
        axes,
    )


def _parse(metric: str) -> Reading | None:
    """Return the reading of a curve that is asked for, None for a plain metric."""
    try:
        return comparison.read_reading(metric) if ":" in metric else None
    except comparison.ComparisonError as error:
        raise Refused(str(error)[:LONG], "metric") from None


def _choose_metric(runs: Catalogue, arm: Sequence[str]) -> str:
    """Return the held-out score or, if a run lacks it, the first curve that all runs of the arms have."""
    names = [name for name in ",".join(arm).split(",") if name][:RUNS]
    known = [_list_metrics(path, read_stamp(path)) for path in _find(runs, names)]
    everywhere = set.intersection(*map(set, known)) if known else set()
    shared = [name for name in (known or [()])[0] if name in everywhere]
    return GREEDY if GREEDY in shared else next(iter(choose_curves(shared).values()), GREEDY)


def _find(runs: Catalogue, names: Sequence[str]) -> list[Path]:
    return [runs.find(name) for name in names]


@lru_cache(RUNS)
def _list_metrics(path: Path, stamp: Stamp) -> tuple[str, ...]:
    """Return the names of a run's metrics, cached until its files change."""
    return tuple(Run(path).list_metrics())


def _read(path: Path, wanted: tuple[str, ...]) -> tuple[Columns, list[str]]:
    """Return (the columns of metrics and of amounts spent, all names) of a run, cached until its files change."""
    stamp = read_stamp(path)
    with _lock:
        before = _kept.get((path, wanted))
    if before is not None and before[0] == stamp:
        return before[1]
    run = Run(path)
    names = list(_list_metrics(path, stamp))
    meant = {one: one if one in names else choose_curves(names).get(one, one) for one in wanted}
    columns = run.read_columns([*meant.values(), *(n for n in names if n.startswith("spent/"))])
    for one, name in meant.items():
        if all(value is None for value in columns[name]):
            known = nearest(one[:TEXT], [*names, *choose_curves(names)])
            raise Refused(f"{path}: no metric {one[:TEXT]!r}; {known}", "metric")
    with _lock:
        _kept.pop((path, wanted), None)
        _kept[path, wanted] = stamp, (columns, names)
        while len(_kept) > RUNS or (len(_kept) > 1 and sum(map(_count_numbers, _kept.values())) > NUMBERS):
            del _kept[next(iter(_kept))]
    return columns, names


def _count_numbers(kept: tuple[Any, tuple[Columns, list[str]]]) -> int:
    columns, names = kept[1]
    return sum(map(len, columns.values())) + len(names)


def _make_curve(some: Sequence[Columns], metric: str, over: str) -> dict[str, Any]:
    """Return the mean with the range of its runs, at most 2 POINTS: for each segment its lowest and highest mean, with
    the range over the whole segment."""
    x, y = average_curves([read_curve(columns, metric, over) for columns in some])
    mean, low, high = y.mean(0), y.min(0), y.max(0)
    if len(x) > 2 * POINTS:
        kept: list[int] = []
        ends = []
        for part in np.array_split(np.arange(len(x)), POINTS):
            two = sorted({int(part[mean[part].argmin()]), int(part[mean[part].argmax()])})
            kept += two
            ends += [(low[part].min(), high[part].max())] * len(two)
        x, mean = x[kept], mean[kept]
        low, high = np.array(ends).T
    return {"x": x, "mean": mean, "low": low, "high": high, "n": len(y)}


def _place_thresholds(values: Sequence[float]) -> np.ndarray:
    """Return [101] scores from just below the lowest to just above the highest."""
    if not values:
        return np.zeros(0)
    low, high = min(values), max(values)
    room = (high - low or abs(high) or 1.0) * 0.05
    return np.linspace(low - room, high + room, 101)


def _name(runs: Catalogue, path: Path) -> str:
    return path.relative_to(runs.root).as_posix() if path.is_relative_to(runs.root) else path.name


def _show(values: Sequence[Any]) -> str:
    """Return the values of a setting in an arm as text, cut if long."""
    text = " or ".join("not set" if v is None else f"{v:g}" if _is_number(v) else str(v) for v in values)
    return text if len(text) <= TEXT else f"{text[:TEXT]}…"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

"""Ours beside the published numbers, as rows of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.data import Array
from shuhari.lab.plot import average_curves
from shuhari.lab.reproduce.published import Published, Target, judge
from shuhari.lab.reproduce.runs import count_earlier, list_runs, list_values, read_result
from shuhari.lab.reproduce.targets import read_targets

HEAD = ("name", "environment", "ours", "seeds", "published", "by", "seeds there", "verdict", "minutes a seed",
        "what is read")  # fmt: skip
HERE = "run here"
SEEDS = 3  # a side, from which on a peer is judged


def format_spread(mean: float, deviation: float | None) -> str:
    """`mean ± deviation`, with a decimal if they are below 100."""
    digits = 1 if abs(mean) < 1000 else 0
    return f"{mean:,.{digits}f}" if deviation is None else f"{mean:,.{digits}f} ± {deviation:,.{digits}f}"


def format_gap(gap: float, error: float) -> str:
    """`gap ± its standard error` with the sign of the gap, and two decimals if the error is below 2."""
    digits = 0 if error >= 2 else 2
    return f"{gap:+,.{digits}f} ± {error:,.{digits}f}"


def describe(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds in words; "not measured" if there are none."""
    if not values:
        return "not measured"
    x = np.asarray(values, np.float64)
    return format_spread(float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else None)


def list_rows(names: Sequence[str], out: Path) -> list[tuple[str, ...]]:
    """One row as in HEAD for each published number, and for each peer that was run beside ours, of the targets."""
    rows: list[tuple[str, ...]] = []
    for name in names:
        target, result = read_targets()[name], read_result(name, out)
        runs, values = list_runs(result), list_values(result)
        diverged = len(runs) - len(values)
        seeds = f"{len(values)}, {diverged} diverged" if diverged else str(len(values))
        beside = [
            (format_spread(one.mean, one.spread), one.by, str(one.seeds),
             judge(values, target.env, one, diverged) if runs else "")
            for one in target.published
        ]  # fmt: skip
        if peer := (result or {}).get("peer"):
            theirs = list_values(peer)
            verdict = judge_beside(values, theirs, target.env, diverged)
            beside.append((describe(theirs), peer["by"], str(len(theirs)), verdict))
        ours, rest = (name, target.env, describe(values), seeds), (_describe_minutes(runs, target), target.protocol)
        rows += [(*ours, *there, *rest) for there in beside or [("",) * 4]]
    return rows


def judge_beside(ours: Sequence[float], theirs: Sequence[float], env: str, diverged: int) -> str:
    """The verdict on a peer that was run here; with fewer than SEEDS a side only that it was."""
    if min(len(ours), len(theirs)) < SEEDS:
        return HERE
    there = Published("", float(np.mean(theirs)), "", env, len(theirs), float(np.std(theirs, ddof=1)))
    return f"{HERE}, {judge(ours, env, there, diverged)}"


def compare_curves(result: Mapping[str, Any]) -> tuple[float, float] | None:
    """The mean return over all of training, ours less that of the peer that was run here, and the standard error of
    this difference; None with fewer than SEEDS a side."""
    ours, theirs = read_curves(result), read_curves(result.get("peer") or {"runs": []})
    if min(len(ours), len(theirs)) < SEEDS:
        return None
    steps, returns = average_curves([*ours, *theirs])
    means = np.trapezoid(returns, steps) / (steps[-1] - steps[0])
    a, b = means[: len(ours)], means[len(ours) :]
    return float(a.mean() - b.mean()), math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))


def read_curves(side: Mapping[str, Any]) -> list[tuple[Array, Array]]:
    """The curves (steps, returns) of the seeds of a result, or of a peer in it, that have one."""
    return [tuple(np.array(run["curve"], np.float64).T) for run in side["runs"] if run.get("curve")]


def list_scores(out: Path) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A table (head, rows) of the published scores on recorded data, a row for each data set and a column for each
    method; behind ours and a stroke if there is one. `own`: there is a protocol and no number."""
    cells: dict[str, dict[str, str]] = {}
    for name, target in read_targets().items():
        if target.data:
            ours = list_values(read_result(name, out))
            there = [format_spread(one.mean, one.spread) for one in target.published] or ["own"]
            shown = " / ".join([describe(ours), *there] if ours else there)
            cells.setdefault(target.of, {})[name.removesuffix(f"-{target.of}")] = shown
    methods = list(dict.fromkeys(chain.from_iterable(cells.values())))
    return ("data", *methods), [(of, *map(row.get, methods, repeat(""))) for of, row in cells.items()]


def list_notes(names: Sequence[str], out: Path) -> list[str]:
    """What is not in the table of these targets: the mean over all of training beside a peer's, seeds of an earlier
    state of the library, and other simulators."""
    results = {name: read_result(name, out) for name in names}
    earlier = {name: count_earlier(result, read_targets()[name]) for name, result in results.items()}
    old = [f"{name} ({n} of {len(list_runs(results[name]))})" for name, n in earlier.items() if n]
    apart: dict[str, list[str]] = {}
    for name in names:
        for one in read_targets()[name].published:
            if one.simulator:
                apart.setdefault(f"{one.by} ({one.simulator})", []).append(name)
    beside = {name: found for name, result in results.items() if result and (found := compare_curves(result))}
    lines = [f"{name} {format_gap(*found)}" for name, found in beside.items()]
    return [
        *([f"mean return over all of training, ours less that of the peer run here, and its standard error: "
           f"{', '.join(lines)}"] if lines else []),
        *([f"seeds made by an earlier state of the library's core or of the recipe: {', '.join(old)}"] if old else []),
        *(f"another simulator there, {there}: {', '.join(some)}" for there, some in apart.items()),
    ]  # fmt: skip


def _describe_minutes(runs: Sequence[Mapping[str, Any]], target: Target) -> str:
    """The minutes of processor time that a seed took, measured if it was."""
    spent = [run["cpu_s"] / 60 for run in runs if run.get("cpu_s")]
    return f"{float(np.median(spent)):.1f}" if spent else f"about {target.minutes:g}"

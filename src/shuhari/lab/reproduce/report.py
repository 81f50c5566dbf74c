"""Ours beside the published numbers, as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.lab.reproduce.published import Target, judge, read_targets
from shuhari.lab.reproduce.runs import count_earlier, list_runs, list_values, read_result

HEAD = ("name", "environment", "ours", "seeds", "published", "by", "seeds there", "verdict", "minutes a seed",
        "what is read")  # fmt: skip


def format_spread(mean: float, deviation: float | None) -> str:
    """`mean ± deviation`, with a decimal if they are below 100."""
    digits = 1 if abs(mean) < 1000 else 0
    return f"{mean:,.{digits}f}" if deviation is None else f"{mean:,.{digits}f} ± {deviation:,.{digits}f}"


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
            beside.append((describe(theirs), peer["by"], str(len(theirs)), "run here"))
        ours, rest = (name, target.env, describe(values), seeds), (_describe_minutes(runs, target), target.protocol)
        rows += [(*ours, *there, *rest) for there in beside or [("",) * 4]]
    return rows


def list_notes(names: Sequence[str], out: Path) -> list[str]:
    """What the table of these targets does not say: seeds of an earlier state of the library, and other simulators."""
    results = {name: read_result(name, out) for name in names}
    earlier = {name: count_earlier(result, read_targets()[name]) for name, result in results.items()}
    old = [f"{name} ({n} of {len(list_runs(results[name]))})" for name, n in earlier.items() if n]
    apart: dict[str, list[str]] = {}
    for name in names:
        for one in read_targets()[name].published:
            if one.simulator:
                apart.setdefault(f"{one.by} ({one.simulator})", []).append(name)
    return [
        *([f"seeds made by an earlier state of the library's core or of the recipe: {', '.join(old)}"] if old else []),
        *(f"another simulator there, {there}: {', '.join(some)}" for there, some in apart.items()),
    ]


def _describe_minutes(runs: Sequence[Mapping[str, Any]], target: Target) -> str:
    """The minutes of processor time that a seed took, measured if it was."""
    spent = [run["cpu_s"] / 60 for run in runs if run.get("cpu_s")]
    return f"{float(np.median(spent)):.1f}" if spent else f"about {target.minutes:g}"

"""Statistics of many runs, of whatever program, and one open table of their curves (Open RL Benchmark, Huang et al.
2024, arXiv 2402.03046; the statistics are those of Agarwal et al. 2021, arXiv 2108.13264).

Left out: a registry that others can query, and system metrics."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shuhari.bounds import check
from shuhari.data import Array
from shuhari.kernel.findings import AnalysisError, Curves, Finding, Given, Number, Panel, Reads
from shuhari.kernel.registry import register
from shuhari.kernel.stats import bootstrap_interquartile_mean, interquartile_mean, profile_performance

HEAD = ("run", "method", "task", "seed", "made_with", "metric", "step", "value")
FEW = 5  # runs of an arm
TIMES = ("wall", "seconds", "speed")  # of the clock, which differ each time


@register("run_analysis", "benchmark")
@dataclass
class Benchmark:
    """How good each of several sets of runs is: interquartile mean, probability of improvement, performance profile.

    Give arms as NAME=RUN,RUN,...; runs without a name are an arm by their method. Numbers, of each arm: `iqm`, the mean
    of the middle half of its runs' last scores, and `gap`, the optimality gap, the mean of max(0, `target` - score); of
    each arm but the first, `better`, the chance that a run of it is above one of the first, a tie counting half.
    Intervals: bootstrap over runs, too narrow for fewer than about ten. `to` writes all curves into one open table, a
    row a number, which this analysis and others read again. `rerun` trains each run of shuhari again by its stored
    recipe: `rerun differs` is the number of values that are not equal to the bit, of clocks apart.
    """

    metric: str = "evaluate/greedy"
    """Column of the score."""
    over: str = ""
    """Column of the budget; the axis of the runs if empty. Scores are read where the shortest run ends."""
    target: float = 1.0
    """Score from which on a run has no optimality gap."""
    to: str = ""
    """File to write the curves to, .csv or .parquet (with `shuhari[lm]`); nothing is written if empty."""
    rerun: bool = False
    """Whether to train the runs again and compare, which takes as long as they took."""

    reads: ClassVar[Reads] = "curves"

    def __post_init__(self) -> None:
        check(self)
        if self.to and Path(self.to).suffix not in (".csv", ".parquet"):
            raise ValueError(f"to {self.to!r}: expected a file that ends with .csv or .parquet")

    def __call__(self, given: Given) -> Finding:
        """Raises AnalysisError for a metric that a run does not have, and for runs of different tasks."""
        every = given.read_curves()
        tasks = {one.facts["task"]: one.name for one in every if one.facts.get("task")}
        if len(tasks) > 1:
            found = " and ".join(f"{name} solves {task}" for task, name in list(tasks.items())[:2])
            raise AnalysisError(f"{found}: their scores cannot be compared: expected one task")
        if self.to:
            write_table(every, Path(self.to))
        arms: dict[str, list[Curves]] = {}
        for one in every:
            arms.setdefault(one.arm or one.facts.get("method", "") or one.name, []).append(one)
        read = {name: list(map(self._read, runs)) for name, runs in arms.items()}
        end = min(float(x[-1]) for x, _ in chain.from_iterable(read.values()))
        scores = {name: interpolate_all(curves, end) for name, curves in read.items()}
        numbers = dict(self._list_numbers(scores, given.draw_from("runs")))
        if self.rerun:
            differing = sum(count_differing(one, given.repeat(i)) for i, one in enumerate(every))
            numbers["rerun differs"] = Number(differing, says="values of all runs, clocks apart")
        rows: list[tuple[str, str, float]] = []
        for name, runs in arms.items():
            rows += [(name, one.name, float(score)) for one, score in zip(runs, scores[name], strict=True)]
        axis = self.over or every[0].axis
        notes = [f"scores are read at {end:g} {axis} of the last stage, where the shortest run ends, linearly between "
                 "its points"]  # fmt: skip
        if min(map(len, arms.values())) < FEW:
            notes.append(f"arms of fewer than {FEW} runs: their numbers are of these runs, not of the methods")
        if self.to:
            notes.append(f"curves: {self.to}")
        return Finding(numbers, self._draw(read, scores, axis), ("arm", "run", self.metric), rows, notes)

    def _read(self, one: Curves) -> tuple[Array, Array]:
        return one.select_last(self.over).read(self.metric, self.over)

    def _list_numbers(self, scores: dict[str, Array], rng: np.random.Generator) -> Iterator[tuple[str, Number]]:
        first = next(iter(scores.values()))
        for name, values in scores.items():
            iqm = bootstrap_interquartile_mean(values)
            runs = f"{len(values)} run{'s' * (len(values) > 1)}"
            yield f"iqm of {name}", Number(iqm.value, iqm.low, iqm.high, says=runs)
            gaps = np.maximum(0.0, self.target - values)
            ends = resample(gaps, gaps[:0], lambda a, _: float(a.mean()), rng)
            yield f"gap of {name}", Number(float(gaps.mean()), *ends, says=f"mean of max(0, {self.target:g} - score)")
            if values is not first:
                ends = resample(values, first, find_improvement, rng)
                yield f"better: {name}", Number(find_improvement(values, first), *ends, null=0.5,
                                                says=f"chance to be above {next(iter(scores))}")  # fmt: skip

    def _draw(
        self, read: dict[str, list[tuple[Array, Array]]], scores: dict[str, Array], axis: str
    ) -> dict[str, Panel]:
        every = np.concatenate(list(scores.values()))
        at = np.linspace(float(every.min()), float(every.max()), 60)
        profiles = {name: (at, profile_performance(values, at)) for name, values in scores.items()}
        curves = {}
        for name, runs in read.items():
            begin = max(float(x[0]) for x, _ in runs)
            grid = np.linspace(begin, min(float(x[-1]) for x, _ in runs), 60)
            curves[name] = grid, np.array([interquartile_mean(interpolate_all(runs, x)) for x in grid])
        return {"interquartile mean": Panel(curves, axis, self.metric),
                "performance profile": Panel(profiles, self.metric, "share of runs above")}  # fmt: skip


def interpolate(curve: tuple[Array, Array], at: float) -> float:
    """Return the value of a curve at a point of its axis, linearly within its range, and at its ends beyond."""
    return float(np.interp(at, *curve))


def interpolate_all(curves: Sequence[tuple[Array, Array]], at: float) -> Array:
    """Return the value of each curve at one point."""
    return np.array([interpolate(curve, at) for curve in curves])


def find_improvement(x: Array, y: Array) -> float:
    """Return P(X > Y) + P(X = Y) / 2 over all pairs of [n] and [m]."""
    above, equal = x[:, None] > y[None], x[:, None] == y[None]
    return float((above + 0.5 * equal).mean())


def resample(x: Array, y: Array, of: Any, rng: np.random.Generator, draws: int = 1000) -> tuple[float, float]:
    """Return the 95 % percentile interval of a number of two samples, each drawn again; NaN for fewer than two runs."""
    if len(x) < 2:
        return math.nan, math.nan
    values = [of(rng.choice(x, len(x)), rng.choice(y, len(y)) if len(y) else y) for _ in range(draws)]
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def count_differing(one: Curves, again: Curves) -> int:
    """Return how many values of two runs are not equal, without those of clocks; a missing row or column counts
    whole."""
    clocks = re.compile("|".join(TIMES))
    names = {name for name in (*one.columns, *again.columns) if not clocks.search(name)}
    out = 0
    for name in names:
        a, b = list(one.columns.get(name, ())), list(again.columns.get(name, ()))
        out += abs(len(a) - len(b)) + sum(p != q and not (p != p and q != q) for p, q in zip(a, b, strict=False))
    return out


def write_table(every: Sequence[Curves], path: Path) -> None:
    """Write curves as one table, a row a number, with the facts of each run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = list_rows(every)
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            out = csv.writer(file)
            out.writerow(HEAD)
            out.writerows(rows)
        return
    try:
        from pyarrow import table
        from pyarrow.parquet import write_table as write
    except ModuleNotFoundError:
        raise AnalysisError(f'{path}: Parquet needs pyarrow: pip install "shuhari[lm]"; or write a .csv') from None
    write(table(dict(zip(HEAD, map(list, zip(*rows, strict=True)), strict=True))), path)


def list_rows(every: Sequence[Curves]) -> Iterator[tuple[Any, ...]]:
    """Yield a row of HEAD for each finite number of each curve."""
    for one in every:
        facts = [one.arm or one.facts.get("method", ""), *(one.facts.get(key, "") for key in HEAD[2:4])]
        for name in one.columns:
            if name in ("stage", one.axis):
                continue
            for x, y in zip(one.columns[one.axis], one.columns[name], strict=True):
                if isinstance(x, int | float) and isinstance(y, int | float) and math.isfinite(y):
                    yield one.name, *facts, one.facts.get("made_with", one.kind), name, x, float(y)

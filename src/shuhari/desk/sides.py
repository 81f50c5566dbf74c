"""Arms side by side: of named runs, or of everything measured on a bed. Numbers, curves and caveats of both in one
form, for a table, a plot and a file. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from shuhari.config.overlay import RecipeError
from shuhari.data import Array, nearest
from shuhari.desk import comparison
from shuhari.desk.comparison import ComparisonError
from shuhari.desk.contrasts import Pair, contrast, describe_arm, explain_levels, find_stuck
from shuhari.lab.claims.checks import BASELINE, METHOD
from shuhari.lab.claims.on_bed import (
    find_alpha,
    find_name,
    find_saturation,
    list_metrics,
    list_results,
    read_by_seed,
    read_curves,
)
from shuhari.lab.claims.verdict import LEAST
from shuhari.lab.plot import average_curves, name_axis, name_metric, put_before, read_curve

AXIS = "x"  # the name of the axis, among labels
Entry = Mapping[str, Any]
Curves = Mapping[str, Sequence[tuple[Array, Array]]]


@dataclass
class Sides:
    """arms: name -> the statistics of `contrasts` for the values of `metric`; guards: metric -> the same. panels:
    metric -> arm -> curves (x, y); axis: the label of x; labels: metric -> what plots and tables write for it."""

    metric: str
    arms: dict[str, dict[str, Any]]
    guards: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    panels: dict[str, Curves] = field(default_factory=dict)
    axis: str = "step"
    caveats: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def first(self) -> str:
        """The name of the arm that the others are compared with."""
        return next(iter(self.arms))

    def label(self, labels: Mapping[str, str]) -> None:
        """Set labels of metrics, and of `x`, in plots and tables. Raises ComparisonError for another name."""
        known = {AXIS: AXIS}
        for m in (self.metric, *self.guards):
            base = m.partition(":")[0]
            known |= dict.fromkeys((base, name_metric(base), m), m)
        for name, text in labels.items():
            if name not in known:
                raise ComparisonError(f"nothing is called {name!r} here; {nearest(name, known)}")
            self.labels[known[name]] = text
        self.axis = self.labels.get(AXIS, self.axis)
        for m in (self.metric, *self.guards):
            base = m.partition(":")[0]
            old = base if base in self.panels else f"{name_metric(base)} ({base})"
            if m in self.labels and old in self.panels:
                self.panels = {self.labels[m] if key == old else key: curves for key, curves in self.panels.items()}


def compare_runs(arms: Mapping[str, Sequence[Path]], metric: str, guards: Sequence[str] = ()) -> Sides:
    """Compare runs over seeds, arms by name, in a metric, its last value or a reading (`evaluate/mean:area`), and in
    guards. Raises ComparisonError."""
    from shuhari.store import metrics

    columns = {
        name: [metrics(path) for path in paths]
        for name, paths in arms.items()
    }
    every = list(chain.from_iterable(arms.values()))
    over = comparison.find_axis(columns, every)
    found = {m: comparison.compare_seeds(arms, columns, m, over) for m in (metric, *guards)}
    out = Sides(metric, found[metric], {m: found[m] for m in guards}, axis=name_axis(over))
    out.caveats = comparison.list_caveats(found[metric], single=False) + _list_more(out)
    try:
        out.panels = draw_runs(arms, columns, list(found), over)
    except KeyError as error:
        out.caveats.append(f"no plot: {error.args[0]}")
    if any(":" in m for m in found):
        out.caveats += comparison.list_uneven(columns, over)
    return out


def draw_runs(
    arms: Mapping[str, Sequence[Path]], columns: Mapping[str, Sequence[Any]], metrics: Iterable[str], over: str
) -> dict[str, Curves]:
    """Return the curves of metrics, each starting with the score before training. Raises KeyError if a run has none."""
    panels: dict[str, Curves] = {}
    for metric in dict.fromkeys(m.partition(":")[0] for m in metrics):
        word, some = name_metric(metric), dict[str, list[tuple[Array, Array]]]()
        for name, paths in arms.items():
            starts = comparison.find_starts(paths, columns[name], metric, over)
            pairs = zip(columns[name], starts, strict=True)
            some[name] = [put_before(read_curve(table, metric, over), start) for table, start in pairs]
        panels[metric if word == metric else f"{word} ({metric})"] = some
    return panels


def compare_bed(
    bed: str,
    out: Path,
    runs: Path,
    metric: str = "",
    guards: Sequence[str] = (),
    results: Mapping[str, Mapping[str, Any]] | None = None,
) -> Sides:
    """Compare the methods that `claim` measured on a bed: the baseline first, then each method against the baseline of
    its own result and seeds. Metrics that results do not store are read from the runs below `runs`. results: those of
    the bed, if already read. Raises ComparisonError if nothing was measured there, or no result has the metric."""
    from shuhari.lab.claims.board import choose_reading

    name = find_name(bed)
    try:
        results = list_results(name, out, known=Path(bed).is_file()) if results is None else results
        if not results:
            unmeasured = f"nothing was measured on {name!r}: `shuhari claim METHOD --bed {bed}` measures a method"
            raise ComparisonError(unmeasured)
        metric = metric or choose_reading(name, dict.fromkeys(list_metrics(results), 1))
        found = {m: _read_bed(name, results, m, runs) for m in (metric, *guards)}
    except (ValueError, RecipeError) as error:
        raise ComparisonError(str(error)) from None
    for m, arms in found.items():
        if len(arms) < 2:
            known = list_metrics(results)
            near = nearest(m.partition(":")[0], known)
            what = f"no result on {name!r} has {m!r}, nor have the runs in {runs}"
            told = f"{near} There are {', '.join(known)}" if near.startswith("did you mean") else near
            raise ComparisonError(f"{what}; {told}")
    sides = Sides(metric, found[metric], {m: found[m] for m in guards})
    some = next(iter(results.values()))
    sides.axis = next(iter(some["budget"] or {"steps": 0})).replace("_", " ")
    sides.panels = _draw_bed(name, results, found, runs)
    sides.caveats = comparison.list_caveats(found[metric], single=False) + _list_more(sides)
    if others := _list_other_bases(results, metric, runs):
        sides.caveats.append(f"measured against a baseline of other code or another budget than the rest, and compared "
                             f"with that: {', '.join(others)}")  # fmt: skip
    if len({entry["n"] for entry in sides.arms.values()}) > 1:
        sides.caveats.append("arms have different seeds: a mean is over all of its own, a difference over pairs")
    sides.caveats += list(filter(None, (find_saturation(r, metric) for r in results.values())))[:1]
    return sides


def compare_together(results: Sequence[Mapping[str, Any]]) -> list[Sides]:
    """Compare results on the same bed: a table for each headline metric that two or more share."""
    by: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for result in results:
        metric = str(result["headline"].get("metric", ""))
        by.setdefault((str(result["bed"]), metric), {})[result["method"]] = result
    out = []
    for (bed, metric), some in by.items():
        if metric and len(some) > 1 and len(found := _read_bed(bed, some, metric, None)) > 1:
            sides = Sides(metric, found)
            sides.caveats = comparison.list_caveats(found, single=False) + _list_more(sides)
            out.append(sides)
    return out


def _read_bed(
    bed: str, results: Mapping[str, Mapping[str, Any]], metric: str, runs: Path | None
) -> dict[str, dict[str, Any]]:
    """Return the baseline and the methods of a bed that have a metric, the largest difference first."""
    base: dict[int, float] = {}
    pairs, values = dict[str, Pair](), dict[str, list[float]]()
    for method, result in results.items():
        ours, theirs = (read_by_seed(result, arm, metric, runs) for arm in (METHOD, BASELINE))
        seeds = [seed for seed in ours if seed in theirs]
        if seeds:
            base = {**theirs, **base}
            values[method] = [ours[seed] for seed in seeds]
            pairs[method] = Pair([theirs[s] for s in seeds], values[method], True, find_alpha(result))
    told = contrast(pairs, LEAST)
    order = sorted(told, key=lambda name: -told[name]["difference"])
    first = {f"{bed} (baseline)": describe_arm([base[s] for s in sorted(base)], LEAST)}
    return {**first, **{name: describe_arm(values[name], LEAST) | told[name] for name in order}}


def _draw_bed(
    bed: str, results: Mapping[str, Mapping[str, Any]], found: Mapping[str, Mapping[str, Entry]], runs: Path
) -> dict[str, Curves]:
    panels: dict[str, Curves] = {}
    for metric, arms in found.items():
        label = metric.partition(":")[0]
        some: dict[str, list[tuple[Array, Array]]] = {}
        for name in arms:
            of = [results[name]] if name in results else sorted(results.values(), key=lambda r: -len(r["seeds"]))[:1]
            arm = METHOD if name in results else BASELINE
            some[name] = [c for c in read_curves(of[0], arm, label, runs) if len(c[0])]
        panels[label] = {name: curves for name, curves in some.items() if curves and len(average_curves(curves)[0])}
    return panels


def _list_other_bases(results: Mapping[str, Mapping[str, Any]], metric: str, runs: Path) -> list[str]:
    """Return the methods whose baseline differs, at some seed, from that of the result with the most seeds."""
    bases = {name: read_by_seed(result, BASELINE, metric, runs) for name, result in results.items()}
    most = max(bases.values(), key=len)
    return [name for name, base in bases.items() if not _agree(base, most)]


def _agree(some: Mapping[int, float], others: Mapping[int, float]) -> bool:
    """Whether two baselines have the same values at the seeds that both have."""
    return all(value == others.get(seed, value) or value != value for seed, value in some.items())


def _list_more(sides: Sides) -> list[str]:
    """Return caveats: how several comparisons are read together, and whether the arms have room to differ."""
    out = [explain_levels(sides.arms, sides.first), find_stuck(sides.arms, sides.metric)]
    for metric, arms in sides.guards.items():
        out.append(find_stuck(arms, metric))
        out += [f"no interval of {name} in {metric}: {e['why']}" for name, e in arms.items() if e.get("why")]
    if not all(math.isfinite(entry["value"]) for entry in sides.arms.values()):
        out.append("an arm has runs without a value, which are left out")
    return [text for text in out if text]

"""Curves of runs as PNG files. matplotlib is imported when something is drawn, and no display is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.data import Array, nearest

# what a person looks at first: label -> metric, or the end of its name
CURVES = {
    "reward": ("reward/mean",),
    "return": ("rollout/return",),
    "held-out": ("evaluate/greedy",),
    "length": ("rollout/length",),
    "entropy": ("*/entropy",),
    "KL": ("*/kl", "*/approx_kl"),
    "preferred": ("*/accuracy",),
}


def choose_curves(names: Iterable[str]) -> dict[str, str]:
    """label -> metric, of those in CURVES that are among `names`."""
    names = list(names)
    known = [n for n in names if "/loss/" not in n]
    out = {}
    for label, patterns in CURVES.items():
        for pattern in patterns:
            found = [n for n in known if n == pattern or (pattern[0] == "*" and n.endswith(pattern[1:]))]
            if found:
                out[label] = found[0]
                break
    if studied := [n for n in names if n.startswith("study/")]:
        out["study"] = studied[-1]  # a row ends with what it is about
    losses = [n for n in names if "/loss/" in n]
    return out or ({"loss": losses[0]} if losses else {})  # imitation has its loss alone


def find_series(columns: Mapping[str, Sequence[Any]], metric: str) -> tuple[Array, Array]:
    """(step, value) where a metric, or what CURVES calls by a word (`reward`), has a value. Raises KeyError with the
    nearest name."""
    metric = metric if metric in columns else (words := choose_curves(columns)).get(metric, metric)
    if metric not in columns:
        raise KeyError(f"no metric {metric!r}; {nearest(metric, [*columns, *words])}")
    pairs = [(s, v) for s, v in zip(columns["step"], columns[metric], strict=True) if isinstance(v, int | float)]
    x, y = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs], np.float64)
    return x, y


def plot_curves(
    columns: Mapping[str, Sequence[Any]],
    path: str | Path,
    title: str = "",
    over: str = "step",
    before: float | None = None,
) -> Path:
    """Plot a run, one panel for each of CURVES that it has, over the column `over` (`step`, or what was spent of a
    budget); stages are set apart by lines. `before`: the held-out number of the untrained policy, dashed. Raises
    ValueError where there is nothing to draw."""
    shown, over = choose_curves(columns), over if over in columns else "step"
    if not shown or not columns.get("step"):
        raise ValueError(
            "the run has no step with a reward, a score, a length, an entropy or a KL yet: nothing to draw"
        )
    figure, axes = _figure(len(shown))
    place = dict(zip(columns["step"], columns[over], strict=True))
    for ax, (label, metric) in zip(axes, shown.items(), strict=False):
        steps, y = find_series(columns, metric)
        x = [place[step] for step in steps.tolist()]
        ax.plot(x, y, color="tab:blue", marker="o" if len(x) <= 40 else None, markersize=3)
        for step in _borders(columns) if over == "step" else ():
            ax.axvline(step, color="0.8", linewidth=1, zorder=0)
        if label == "held-out" and before is not None:
            ax.axhline(before, color="0.5", linewidth=1, linestyle="--", label="before")
            ax.legend(fontsize="small")
        ax.set_title(label)
        ax.set_xlabel(over.removeprefix("spent/").replace("_", " "))
    return _save(figure, path, title)


def plot_comparison(
    arms: Mapping[str, Sequence[Mapping[str, Sequence[Any]]]], metric: str, path: str | Path, title: str = ""
) -> Path:
    """Plot one line for each arm: the mean over its runs at the steps that all of them have; their range as a band."""
    figure, (ax,) = _figure(1)
    for i, (label, runs) in enumerate(arms.items()):
        found = [dict(zip(*(v.tolist() for v in find_series(run, metric)), strict=True)) for run in runs]
        steps = sorted(set.intersection(*(set(f) for f in found)))
        y = np.array([[f[s] for s in steps] for f in found])  # [runs, steps]
        ax.plot(steps, y.mean(0), color=f"C{i}", label=f"{label} (n = {len(found)})" if len(found) > 1 else label)
        if len(found) > 1:
            ax.fill_between(steps, y.min(0), y.max(0), color=f"C{i}", alpha=0.15, linewidth=0)
    ax.set_xlabel("step")
    ax.set_ylabel(metric)
    ax.legend()
    return _save(figure, path, title)


def plot_bands(
    curves: Mapping[str, Mapping[str, Sequence[Mapping[str, Sequence[float]]]]], unit: str, path: str | Path, title: str
) -> Path:
    """Plot one panel for each metric of `curves` (metric -> arm -> curves {x, y}, one a seed): the mean of each arm
    over what was spent, with a 95 % percentile bootstrap band over seeds, which says less than an interval of a test.
    One that ended early counts as far as it went."""
    from matplotlib.ticker import EngFormatter

    figure, axes = _figure(len(curves))
    for ax, (metric, arms) in zip(axes, curves.items(), strict=False):
        for i, (name, found) in enumerate(arms.items()):
            runs = [r for r in found if r["x"]]
            if not runs:
                continue
            ends = [max(r["x"]) for r in runs]
            x = np.linspace(max(min(r["x"]) for r in runs), min(e for e in ends if e > 0.9 * max(ends)), 60)
            y = np.array([np.interp(x, r["x"], np.array(r["y"], np.float64), right=np.nan) for r in runs])
            ax.plot(x, np.nanmean(y, 0), color=f"C{i}", label=f"{name} (n = {len(runs)})")
            if len(runs) > 1:
                draws = np.nanmean(
                    y[np.random.default_rng(0).integers(0, len(y), (1000, len(y)))], 1
                )  # [draws, points]
                low, high = np.nanquantile(draws, (0.025, 0.975), axis=0)
                ax.fill_between(x, low, high, color=f"C{i}", alpha=0.2, linewidth=0)
        ax.set_title(metric)
        ax.set_xlabel(unit)
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
        ax.legend(fontsize="small")
    return _save(figure, path, title)


# ------------------------------------------------------------------------------------------------ helpers


def _borders(columns: Mapping[str, Sequence[Any]]) -> list[float]:
    stages = columns.get("stage", ())
    return [columns["step"][i] - 0.5 for i in range(1, len(stages)) if stages[i] != stages[i - 1]]


def _figure(n: int) -> tuple[Any, list[Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    width = min(n, 3)
    height = -(-n // width)
    figure = Figure(figsize=(4.2 * width, 3.2 * height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(height, width, i + 1) for i in range(n)]
    for ax in axes:
        ax.grid(alpha=0.25)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))  # it counts steps
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, path: str | Path, title: str) -> Path:
    if title:
        figure.suptitle(title)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    return path

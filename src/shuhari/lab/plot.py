"""Curves of runs as PNG, SVG or PDF files, and their numbers as CSV. matplotlib is imported when something is drawn; no
display is needed."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import IO, Any

import numpy as np

from shuhari.data import EMPTY, Array, nearest
from shuhari.kernel.printable import make_cell

# panels of a plot: label -> metric, or how its name ends
CURVES = {
    "reward": ("reward/mean",),
    "return": ("rollout/return",),
    "held-out": ("evaluate/greedy",),
    "regret": ("*/regret_sum",),  # so far
    "length": ("rollout/length",),
    "entropy": ("*/entropy",),
    "KL": ("*/kl", "*/approx_kl"),
    "preferred": ("*/accuracy",),
}

KINDS = (".png", ".svg", ".pdf")  # of files; otherwise PNG
PRINT: Any = {"font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7,
         "ytick.labelsize": 7, "lines.linewidth": 1.3, "axes.linewidth": 0.6, "svg.fonttype": "none",
         "svg.hashsalt": "shuhari", "pdf.fonttype": 42, "font.family": "sans-serif",
         "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"]}  # fmt: skip
COLUMN, HIGH, DOTS = 3.4, 2.2, 300  # inches: a paper's column and a panel's height; dots an inch of PNG
FEW = 5  # runs; with fewer a band shows their range
LETTER, LINE = 0.06, 0.16  # inches of a letter and of a line of the legend
# styles of arms, in order: colours for the colour-blind (Okabe and Ito, Color Universal Design), dashes for grey prints
STYLES: Any = (("#000000", "-"), ("#0072B2", "--"), ("#D55E00", "-."), ("#009E73", ":"),
          ("#CC79A7", (0, (5, 1, 1, 1, 1, 1))), ("#E69F00", (0, (8, 2))), ("#56B4E9", (0, (1, 3))))  # fmt: skip
MARKS = {"before": "--", "chance": ":"}  # held-out numbers beside the curve -> line style


def choose_curves(names: Iterable[str]) -> dict[str, str]:
    """Return label -> metric, for those in CURVES that are among `names`."""
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
        out["study"] = studied[-1]  # a row ends with its subject
    losses = [n for n in names if "/loss/" in n]
    return out or ({"loss": losses[0]} if losses else {})  # imitation has only its loss


def name_metric(metric: str, measure: str = "") -> str:
    """Return the label of a metric in tables: its word in CURVES, otherwise the metric itself. measure: the reward that
    evaluation reads, which is added: `held-out maths`."""
    if metric == "evaluate/mean" and measure:
        return f"{metric} of {measure}"
    found = next((word for word, m in choose_curves([metric]).items() if m == metric and word in CURVES), metric)
    return f"{found} {measure}" if measure and found == "held-out" else found


def write_csv(columns: Mapping[str, Sequence[Any]], to: IO[str], head: bool = True) -> None:
    """Write columns (`Run.metrics`) as CSV, a line a step, with a header if `head`; empty cells for steps without a
    value. Cells are made printable, and no spreadsheet reads one as a formula."""
    out = csv.writer(to, lineterminator="\n")
    if head:
        out.writerow(map(make_cell, columns))
    for i in range(len(columns["step"])):
        out.writerow([make_cell(columns[name][i]) for name in columns])


def find_series(columns: Mapping[str, Sequence[Any]], metric: str) -> tuple[Array, Array]:
    """Return (step, value) of a metric, or of a word in CURVES (`reward`), at the steps that have a value. Raises
    KeyError with the nearest name."""
    metric = metric if metric in columns else (words := choose_curves(columns)).get(metric, metric)
    if metric not in columns:
        raise KeyError(f"no metric {metric!r}; {nearest(metric, [*columns, *words])}")
    pairs = [(s, v) for s, v in zip(columns["step"], columns[metric], strict=True) if isinstance(v, int | float)]
    x, y = (
        np.array([p[0] for p in pairs]),
        np.array([p[1] for p in pairs], np.float64),
    )
    return x, y


def plot_curves(
    columns: Mapping[str, Sequence[Any]],
    to: str | Path | IO[bytes],
    title: str = "",
    over: str = "step",
    marks: Mapping[str, float] = EMPTY,
    kind: str = "png",
    measure: str = "",
) -> None:
    """Plot a run into a file or a binary stream, with one panel for each of CURVES that it has, over the column `over`
    (`step`, or an amount spent); lines separate the stages. `marks`: held-out numbers beside the curve: `before`,
    dashed, which is also its first point, and `chance`, dotted. kind: `png` or `svg`. measure: the reward of the
    held-out curve. Raises ValueError if there is nothing to draw."""
    shown, over = choose_curves(columns), over if over in columns else "step"
    if not shown or not columns.get("step"):
        raise ValueError(
            "the run has no step with a reward, a score, a regret, a length, an entropy or a KL yet: nothing to draw"
        )
    figure, axes = make_figure(len(shown))
    place = dict(zip(columns["step"], columns[over], strict=True))
    for ax, (label, metric) in zip(axes, shown.items(), strict=False):
        steps, y = find_series(columns, metric)
        x = [place[step] for step in steps.tolist()]
        if label == "held-out" and "before" in marks:
            x, y = [find_start(columns, over), *x], np.append(marks["before"], y)
        ax.plot(x, y, color="tab:blue", marker="o" if len(x) <= 40 else None, markersize=3)
        for step in _borders(columns) if over == "step" else ():
            ax.axvline(step, color="0.8", linewidth=1, zorder=0)
        for name in (n for n in MARKS if n in marks and label == "held-out"):
            ax.axhline(marks[name], color="0.5", linewidth=1, linestyle=MARKS[name], label=name)
            ax.legend(fontsize="small")
        ax.set_title(name_metric(metric, measure) if label == "held-out" else label, parse_math=False)
        ax.set_xlabel(name_axis(over))
    save_figure(figure, to, title, kind)


def plot_comparison(
    arms: Mapping[str, Sequence[Mapping[str, Sequence[Any]]]],
    metric: str,
    to: str | Path | IO[bytes],
    title: str = "",
    over: str = "step",
    kind: str = "",
    starts: Mapping[str, Sequence[tuple[float, float] | None]] = EMPTY,
) -> None:
    """Plot one line for each arm over the column `over`: the mean over its runs, as far as all of them go, linearly
    interpolated, with a band as in `plot_arms`. starts: a first point for each run of an arm, its score before
    training. kind: `png`, `svg` or `pdf` (default: by the file's suffix)."""
    curves = {
        label: [put_before(read_curve(run, metric, over), first)
                for run, first in zip(runs, starts.get(label) or [None] * len(runs), strict=True)]
        for label, runs in arms.items()
    }  # fmt: skip
    name = metric if title in ("", metric) else f"{title} ({metric})"
    plot_arms({name: curves}, to, name_axis(over), kind)


def put_before(curve: tuple[Array, Array], first: tuple[float, float] | None) -> tuple[Array, Array]:
    """Return a curve with a point added before its first, if it lies before it."""
    x, y = curve
    if first is None or not len(x) or first[0] >= x[0]:
        return curve
    return np.concatenate([[first[0]], x]), np.concatenate([[first[1]], y])


def plot_arms(
    panels: Mapping[str, Mapping[str, Sequence[tuple[Array, Array]]]],
    to: str | Path | IO[bytes],
    axis: str,
    kind: str = "",
) -> None:
    """Plot panels of a paper's column width side by side: name -> arm -> curves (x, y), one a run. The mean is a line
    with a colour and dashes of its own; the band is its pointwise 95 % interval (Student's) from FEW runs on, and the
    range with fewer. One legend stands below all panels. axis: label of x. kind: `png`, `svg` or `pdf` (default: by the
    file's suffix). Names of panels and the axis may have formulas between dollar signs (`has_formula`)."""
    from matplotlib import rc_context

    kind, width = kind or find_kind(to), COLUMN * len(panels)
    every = chain.from_iterable(map(dict.items, map(dict, panels.values())))
    n = {arm: len(runs) for arm, runs in every}
    labels = list(n)
    words = {label: "\n".join(wrap(f"{label} (n = {n[label]})" if n[label] > 1 else label, int(width / LETTER) - 10))
             for label in labels}  # fmt: skip
    across = max(1, min(len(labels), int(width / (LETTER * (7 + max(map(_measure, words.values()), default=1))))))
    tall = [words[label].count("\n") + 1 for label in labels]
    high = HIGH + LINE * sum(max(tall[i : i + across]) for i in range(0, len(tall), across))
    with rc_context(PRINT):
        figure, axes = make_figure(len(panels), (COLUMN, high), len(panels))
        for ax, (name, arms) in zip(axes, panels.items(), strict=True):
            for label, runs in arms.items():
                colour, dashes = STYLES[labels.index(label) % len(STYLES)]
                x, y = average_curves(runs)
                ax.plot(x, y.mean(0), color=colour, linestyle=dashes, label=words[label])
                if len(y) > 1:
                    ax.fill_between(x, *_find_band(y), color=colour, alpha=0.12, linewidth=0)
            ax.set_xlabel(axis, parse_math=has_formula(axis))
            ax.set_ylabel(name, parse_math=has_formula(name))
        lines = chain.from_iterable(ax.get_lines() for ax in axes)
        handles = {line.get_label(): line for line in lines}
        legend = figure.legend([*handles.values()], [*handles], loc="outside lower center", ncols=across, frameon=False,
                               handlelength=2.6)  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)
        save_figure(figure, to, "", kind, DOTS)


def has_formula(text: str) -> bool:
    """Whether a label has a formula between dollar signs that matplotlib can draw."""
    from matplotlib.mathtext import MathTextParser

    if text.count("$") < 2 or text.count("$") % 2:
        return False
    try:
        MathTextParser("path").parse(text)
    except ValueError:
        return False
    return True


def _find_band(y: Array) -> tuple[Array, Array]:
    """Return ([points] low, [points] high) of curves [runs, points]."""
    if len(y) < FEW:
        return y.min(0), y.max(0)
    from scipy.stats import t

    half = t.ppf(0.975, len(y) - 1) * y.std(0, ddof=1) / np.sqrt(len(y))
    return y.mean(0) - half, y.mean(0) + half


def _measure(text: str) -> int:
    """Return the length of the longest line of a text."""
    return max(map(len, text.split("\n")))


def average_curves(curves: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return ([points], [runs, points]) of curves (x, y), interpolated on every x of any curve that all curves cover;
    empty if there is none."""
    low, high = (
        max(x[0] for x, _ in curves),
        min(x[-1] for x, _ in curves),
    )
    at = np.unique(np.concatenate([x for x, _ in curves]))
    at = at[(at >= low) & (at <= high)]
    return at, np.array([np.interp(at, *curve) for curve in curves])


def find_kind(to: str | Path | IO[bytes]) -> str:
    """Return `svg` or `pdf` for a file with that suffix, otherwise `png`."""
    suffix = Path(to).suffix.lower() if isinstance(to, str | Path) else ""
    return suffix[1:] if suffix in KINDS else "png"


def plot_bands(
    curves: Mapping[str, Mapping[str, Sequence[Mapping[str, Sequence[float]]]]], unit: str, path: str | Path, title: str
) -> Path:
    """Plot one panel for each metric of `curves` (metric -> arm -> curves {x, y}, one a seed): the mean of each arm
    over the budget spent, with a 95 % percentile bootstrap band over seeds, which is weaker evidence than a test. A run
    that ended early counts up to its end."""
    figure, axes = make_figure(len(curves))
    for ax, (metric, arms) in zip(axes, curves.items(), strict=False):
        for i, (name, found) in enumerate(arms.items()):
            if (band := compute_band(found)) is None:
                continue
            x, mean, low, high, n = band
            colour, dashes = STYLES[i % len(STYLES)]
            ax.plot(x, mean, color=colour, linestyle=dashes, label=f"{name} (n = {n})")
            if n > 1:
                ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        ax.set_title(metric)
        ax.set_xlabel(unit)
        ax.legend(fontsize="small")
    save_figure(figure, path, title)
    return Path(path)


def compute_band(
    curves: Sequence[Mapping[str, Sequence[float]]],
) -> tuple[Array, Array, Array, Array, int] | None:
    """Return (x, mean, low, high, runs) of curves {x, y}, one a seed, at 60 points, with a 95 % percentile bootstrap
    band over seeds (NaN for a single one). A run that ended early counts up to its end. None if no curve has a
    point."""
    runs = [r for r in curves if r["x"]]
    if not runs:
        return None
    ends = [max(r["x"]) for r in runs]
    x = np.linspace(
        max(min(r["x"]) for r in runs),
        min(e for e in ends if e > 0.9 * max(ends)),
        60,
    )
    y = np.array([np.interp(x, r["x"], np.array(r["y"], np.float64), right=np.nan) for r in runs])
    low = high = np.full(len(x), np.nan)
    with warnings.catch_warnings():  # NaN if all drawn runs have ended, as it should be
        warnings.simplefilter("ignore", RuntimeWarning)
        mean = np.nanmean(y, 0)
        if len(y) > 1:
            drawn = y[np.random.default_rng(0).integers(0, len(y), (1000, len(y)))]
            low, high = np.nanquantile(np.nanmean(drawn, 1), (0.025, 0.975), axis=0)
    return x, mean, low, high, len(y)


# ------------------------------------------------------------------------------------------------ helpers


def read_curve(columns: Mapping[str, Sequence[Any]], metric: str, over: str) -> tuple[Array, Array]:
    """Return (x, y) of a metric over the column `over`. Raises KeyError if the metric or its values are missing."""
    steps, y = find_series(columns, metric)
    if not len(steps):
        raise KeyError(f"no run has a value of {metric!r} yet")
    place = dict(zip(columns["step"], columns[over], strict=True))
    return np.array([float(place[step]) for step in steps.tolist()]), y


def name_axis(over: str) -> str:
    return over.removeprefix("spent/").replace("_", " ")


def find_start(columns: Mapping[str, Sequence[Any]], over: str) -> float:
    """Return where the last stage began on the axis `over`: at the step before its first, or 0 if it is the only
    stage."""
    stages = columns.get("stage", ())
    before = [i for i in range(len(stages)) if stages[i] != stages[-1]]
    return float(columns[over][before[-1]] or 0) if before else 0.0


def _borders(columns: Mapping[str, Sequence[Any]]) -> list[float]:
    stages = columns.get("stage", ())
    return [columns["step"][i] - 0.5 for i in range(1, len(stages)) if stages[i] != stages[i - 1]]


def make_figure(n: int, size: tuple[float, float] = (4.2, 3.2), across: int = 3) -> tuple[Any, list[Any]]:
    """Return (figure, axes) of `n` panels of a `size` in inches, `across` a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    width = min(n, across)
    height = -(-n // width)
    figure = Figure(figsize=(size[0] * width, size[1] * height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(height, width, i + 1) for i in range(n)]
    for ax in axes:
        ax.grid(alpha=0.25)
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))  # steps are whole numbers
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))  # 200k: long labels would overlap
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_figure(
    figure: Any, to: str | Path | IO[bytes], title: str, kind: str = "png", dots: int = 120, note: str = ""
) -> None:
    """Save into a file, whose folder is created, or a stream; the same curves give the same bytes. note: a text among
    the metadata of an SVG."""
    if title:
        figure.suptitle(title, parse_math=False)  # a name is not a formula
    if isinstance(to, str | Path):
        Path(to).parent.mkdir(parents=True, exist_ok=True)
    own = {"svg": {"Date": None, "Description": note or None}, "pdf": {"CreationDate": None}}
    figure.savefig(to, dpi=dots, format=kind, metadata=own.get(kind, {"Software": None}))

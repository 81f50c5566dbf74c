"""The curves of published numbers that were measured again: a panel for each, with its seeds, their mean and the
published number as a line. Left out: intervals, for the table has whether a number was reached."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.lab.plot import PRINT, STYLES, average_curves, make_figure, save_figure
from shuhari.lab.reproduce.published import Published, Target
from shuhari.lab.reproduce.report import describe, format_spread, read_curves
from shuhari.lab.reproduce.runs import list_values, read_result
from shuhari.lab.reproduce.targets import read_targets

SIZE = 6.8, 2.6  # inches of a panel
SEEDS, MEAN, THERE, HERE = STYLES[6][0], STYLES[1][0], STYLES[2], STYLES[3]


def list_measured(names: Sequence[str], out: Path) -> dict[str, dict[str, Any]]:
    """Return name -> kept result of the targets that have a curve, in the order of `names`."""
    results = {name: read_result(name, out) for name in names}
    return {
        name: result
        for name, result in results.items()
        if result is not None and _has_curve(result)
    }


def _has_curve(result: Mapping[str, Any]) -> bool:
    return any(run.get("curve") for run in result["runs"])


def digest(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a digest of all that is drawn of results: curves, values, peers, and what was published."""
    drawn = []
    for name, result in found.items():
        target = read_targets()[name]
        runs = [[run["seed"], run["value"], run.get("curve")] for run in result["runs"]]
        there = [vars(one) for one in target.published]
        drawn.append([name, target.env, target.protocol, result["metric"], result.get("peer"), runs, there])
    return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()[:16]


def save_curves(names: Sequence[str], out: Path, to: Path) -> bool:
    """Save the picture of the targets that are measured in the folder `out`; its file's suffix chooses PNG or SVG.
    Returns False, and writes nothing, if none is."""
    from matplotlib import rc_context

    found = list_measured(names, out)
    if not found:
        return False
    with rc_context(PRINT):
        figure = draw(found)
        save_figure(figure, to, "", to.suffix[1:], note=digest(found))
    return True


def draw(found: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a matplotlib figure with a panel a row for each result."""
    figure, axes = make_figure(len(found), SIZE, 1)
    for ax, (name, result) in zip(axes, found.items(), strict=True):
        _draw_panel(ax, read_targets()[name], result)
    return figure


def _draw_panel(ax: Any, target: Target, result: Mapping[str, Any]) -> None:
    curves = read_curves(result)
    for i, (x, y) in enumerate(curves):
        ax.plot(x, y, color=SEEDS, linewidth=0.8, label="" if i else f"{len(curves)} seeds")
    if len(curves) > 1:
        x, runs = average_curves(curves)
        ax.plot(x, runs.mean(0), color=MEAN, label="their mean")
    if result["metric"] != "rollout/return":  # what is compared is no point of the curve
        known = [run for run in result["runs"] if run.get("curve") and run["value"] is not None]
        ends = [(run["curve"][-1][0], run["value"]) for run in known]
        if ends:
            told = f"evaluated at the end: {describe(list_values(result))}"
            ax.plot(*zip(*ends, strict=True), "o", color=MEAN, markersize=3, label=told)
    for one in target.published:
        ax.axhline(one.mean, color=THERE[0], linestyle=THERE[1], linewidth=1, label=_name(one, target.env))
    if peer := result.get("peer"):
        values = [run["value"] for run in peer["runs"]]
        told = f"{peer['by']} {peer.get('version', '')}, run here: {describe(values)}"
        ax.axhline(float(np.mean(values)), color=HERE[0], linestyle=HERE[1], linewidth=1, label=told)
    ax.set_title(f"{target.name}: {target.env}, {target.protocol}", parse_math=False)
    ax.set_xlabel("environment steps")
    ax.set_ylabel("return, last 100 episodes")
    for text in ax.legend(loc="best").get_texts():
        text.set_parse_math(False)


def _name(one: Published, env: str) -> str:
    """A published number with its source, and its environment if it is another than ours."""
    of = "" if one.env == env else f" on {one.env}"
    return f"{one.by}{of}: {format_spread(one.mean, one.spread)} ({one.source.removeprefix('https://')})"

"""The picture of a sweep: what each trial scored, the best so far, and how important each setting was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.data import Array
from shuhari.lab.plot import STYLES, find_kind, make_figure, save_figure
from shuhari.lab.sweeps.trials import PRUNED


def draw_sweep(result: Mapping[str, Any], to: Path) -> Path:
    """Draw the result of a sweep (`run_sweep`) into a file, and return its path: for each objective the trials in order
    with the best so far, and the importances, if they are known."""
    goals, importance = result["objectives"], result["importance"]
    figure, axes = make_figure(len(goals) + bool(importance))
    best = {one["number"] for one in result["best"]}
    for i, (ax, goal) in enumerate(zip(axes, goals, strict=False)):
        number, value, record = find_history(result["trials"], i, up=goal["up"])
        chosen = [n in best for n in number.tolist()]
        ax.plot(number, record, color=STYLES[0][0], label="best so far")
        ax.plot(number, value, "o", color=STYLES[1][0], markersize=4, label="trial")
        ax.plot(number[chosen], value[chosen], "o", color=STYLES[2][0], label="chosen")
        if early := [(one["number"], one["path"][-1][1]) for one in result["trials"] if one["state"] == PRUNED]:
            ax.plot(*zip(*early, strict=True), "x", color=STYLES[4][0], markersize=4, label="ended early")
        ax.set_title(goal["metric"], parse_math=False)
        ax.set_xlabel("trial")
        ax.legend(fontsize="small")
    if importance:
        keys = sorted(importance, key=lambda key: float(importance[key]))  # the largest is drawn at the top
        axes[-1].barh(range(len(keys)), [100 * importance[key] for key in keys], color=STYLES[1][0])
        axes[-1].set_yticks(range(len(keys)), keys, fontsize="small", parse_math=False)
        axes[-1].set_title("importance")
        axes[-1].set_xlabel("% of the variance over trials")
    save_figure(figure, to, f"sweep of {result['recipe']}", find_kind(to))
    return to


def find_history(trials: Sequence[Mapping[str, Any]], i: int, *, up: bool) -> tuple[Array, Array, Array]:
    """Return (number, value of objective i, the best value so far) of the trials that have values, [trials] each."""
    ended = [one for one in trials if one["values"]]
    value = np.array([one["values"][i] for one in ended], np.float64)
    best = np.maximum if up else np.minimum
    return np.array([one["number"] for one in ended]), value, best.accumulate(value)

"""Sets of runs side by side, each compared with the first, for the terminal and the board.

Over seeds, the interval is that of claims: Student's, on pairs with the same seed, from five seeds on (`contrasts`).
Also as in Agarwal et al. (2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice): the
interquartile mean with its bootstrap interval, and the performance profile. Nothing is drawn or stored. No torch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import Any

from shuhari.config.dumps import spreads
from shuhari.config.overlay import format_path, walk_leaves
from shuhari.desk.contrasts import compare_with_first
from shuhari.desk.ends import find_unit
from shuhari.lab.claims.curve import Reading
from shuhari.lab.claims.verdict import LEAST
from shuhari.lab.plot import find_series, find_start, name_axis
from shuhari.store import Run
from shuhari.store.listing import find_tested, name_arm, name_task, read_made

FEWEST = 10  # problems; with fewer, no interval of two runs
GREEDY = "evaluate/greedy"
TITLES = ("name", "summary", "paper", "claim", "format", "alone", "laid")  # of a recipe: no settings

READINGS = {  # of a curve: what follows the colon -> in words; V and K are numbers
    "final": "last value, at the end of the shortest run",
    "first": "first value",
    "best": "largest value",
    "worst": "smallest value",
    "mean": "mean of all reports",
    "area": "mean over the budget",
    "last=K": "mean of the last K reports",
    "over=V": "area above V",
    "to=V": "budget spent until V is reached",
    "at=OTHER>=V": "value as OTHER reaches V",
}

Columns = Mapping[str, Sequence[Any]]


class ComparisonError(ValueError):
    """Arms that cannot be compared; the message names them and the reason."""


def compare_seeds(
    arms: Mapping[str, Sequence[Path]], columns: Mapping[str, Sequence[Columns]], metric: str, over: str = "step"
) -> dict[str, dict[str, Any]]:
    """Compare arms by the last value of a metric in each run, or by a reading of its curve (`metric:area`, over the
    column `over`); differences are over seeds, paired if both arms have the same seeds."""
    return compare_with_first(read_finals(arms, columns, metric, over), LEAST)


def read_finals(
    arms: Mapping[str, Sequence[Path]], columns: Mapping[str, Sequence[Columns]], metric: str, over: str = "step"
) -> dict[str, tuple[list[float], list[Any]]]:
    """Return (the values, the seeds) of each arm, sorted by seed: the last value of the metric, or a reading of its
    curve up to what all runs have reached. Raises ComparisonError if two runs of an arm share a seed, or the metric or
    reading is unknown."""
    found: dict[str, tuple[list[float], list[Any]]] = {}
    reading = read_reading(metric) if ":" in metric else None
    whole = find_whole(columns, over) if reading else 0.0

    def read(table: Columns, path: Path) -> float:
        return read_curve(reading, table, over, path, whole) if reading else read_last(table, metric, path)

    for name, paths in arms.items():
        rows = [(read_seed(p), read(c, p)) for p, c in zip(paths, columns[name], strict=True)]
        rows.sort(key=lambda row: row[0])
        twice = next((a for (a, _), (b, _) in pairwise(rows) if a == b), None)
        if twice is not None:
            raise ComparisonError(f"{name}: two runs have seed {twice}: expected a different seed of each run")
        found[name] = (
            [value for _, value in rows],
            [seed for seed, _ in rows],
        )
    return found


def read_seed(path: Path) -> Any:
    """Return the seed of a run."""
    return Run(path).recipe.get("seed", 0)


def read_last(columns: Columns, metric: str, path: Path) -> float:
    """Return the last value of a metric in a run. Raises ComparisonError if there is none."""
    try:
        _, values = find_series(columns, metric)
    except KeyError as error:
        raise ComparisonError(f"{path}: {error.args[0]}") from None
    if not len(values):
        raise ComparisonError(f"{path} has no value of {metric} yet")
    return float(values[-1])


def read_reading(metric: str) -> Reading:
    """Parse a reading of a curve, such as `evaluate/mean:area`. Raises ComparisonError if it is invalid."""
    try:
        return Reading.of(metric)
    except ValueError as error:
        raise ComparisonError(str(error)) from None


def list_uneven(columns: Mapping[str, Sequence[Columns]], over: str) -> list[str]:
    """Return a sentence if runs have come to different points of the axis `over`, so that curves are cut."""
    tables = chain.from_iterable(columns.values())
    ends = [float(table[over][-1] or 0.0) for table in tables if table.get(over)]
    if not ends or max(ends) <= 1.1 * min(ends):
        return []
    return [f"runs have come to between {min(ends):g} and {max(ends):g} {name_axis(over)}: curves are read up to "
            f"{min(ends):g}"]  # fmt: skip


def find_whole(columns: Mapping[str, Sequence[Columns]], over: str) -> float:
    """Return the value on the axis `over` that every run has reached."""
    tables = chain.from_iterable(columns.values())
    return min((float(table[over][-1] or 0.0) for table in tables if table.get(over)), default=math.nan)


def read_curve(reading: Reading, columns: Columns, over: str, path: Path, whole: float) -> float:
    """Return a reading of a run's curve over the column `over`, up to `whole`, starting with its score before the last
    stage. Raises ComparisonError if the run lacks the metric, or has no value of it."""
    start = (Run(path).summary or {}).get("before") or {}
    try:
        return reading(columns, [float(x or 0.0) for x in columns[over]], start, whole, find_start(columns, over))
    except KeyError as error:
        raise ComparisonError(f"{path}: {error.args[0]}") from None


def find_starts(paths: Sequence[Path], columns: Sequence[Columns], metric: str, over: str) -> list[Any]:
    """Return (start of the last stage on the axis `over`, score there) for each run; None if unknown."""
    out: list[Any] = []
    for path, table in zip(paths, columns, strict=True):
        before = (Run(path).summary or {}).get("before") or {}
        value = before.get(metric.removeprefix("evaluate/"), math.nan) if metric.startswith("evaluate/") else math.nan
        known = isinstance(value, int | float) and not math.isnan(value)
        out.append((find_start(table, over), float(value)) if known else None)
    return out


def list_caveats(found: Mapping[str, Mapping[str, Any]], single: bool, equal: bool = False) -> list[str]:
    """Return sentences on the limits of the numbers. `equal`: the runs differ by the same on every problem."""
    others = list(found.values())[1:]
    if single:
        least = min(entry["n"] for entry in found.values())
        out = ["one run an arm: the interval is over problems, and is about these runs; several seeds compare methods"]
        if least < FEWEST:
            out.append(f"no interval: {least} held-out problem{'s' * (least != 1)}, and one of fewer than {FEWEST} "
                       "means little: give the task more, or evaluate more with -n")  # fmt: skip
        elif equal:
            out.append(f"no interval: the runs differ by the same on each of {least} problems")
        return out
    out = [f"no interval of {name}: {entry['why']}" for name, entry in found.items() if entry.get("why")]
    if any(entry["low"] != entry["low"] and not entry.get("why") for entry in others):
        least = min(entry["n"] for entry in found.values())
        out.append(f"no interval: {least} seed{'s' * (least != 1)} an arm, and one of fewer than {LEAST} means little: "
                   "train more seeds (--seed), the same on each arm")  # fmt: skip
    if not all(entry["paired"] for entry in others):
        out.append("arms of different seeds are not paired, which costs precision: give each the same seeds")
    return out


def check_same_task(paths: Sequence[Path]) -> None:
    """Raises ComparisonError if runs are tested on different tasks, whose numbers are not comparable."""
    tasks = {path: name_task(find_tested(Run(path).recipe)) for path in paths}
    first, other = paths[0], next((p for p in paths if tasks[p] != tasks[paths[0]]), None)
    if other is not None:
        raise ComparisonError(f"{first} solves {tasks[first]}, {other} solves {tasks[other]}: expected one task")


def list_measures(arms: Mapping[str, Sequence[Path]]) -> list[str]:
    """Return the rewards that the evaluations of the runs read, each once; runs that do not record it are skipped."""
    found = [
        str(Run(path).get("measure") or "")
        for paths in arms.values()
        for path in paths
    ]
    return [name for name in dict.fromkeys(found) if name]


def find_axis(columns: Mapping[str, Sequence[Columns]], paths: Sequence[Path]) -> str:
    """Return the column of the budget that all runs share; `step` if their budgets have different units."""
    tables = [
        table
        for arm in columns.values()
        for table in arm
    ]
    found = {find_unit(Run(path).recipe, table) for path, table in zip(paths, tables, strict=True)}
    return found.pop() if len(found) == 1 else "step"


def name_arms(arms: Mapping[str, Sequence[Path]]) -> dict[str, str]:
    """Return a short, distinct name for each arm: its recipe or its arm in a claim; if these are not distinct, the
    common start of its runs' names; otherwise the recipe with a number."""
    recipes = {
        arm: {_name_recipe(path) for path in paths}
        for arm, paths in arms.items()
    }
    starts = {
        arm: _find_start([path.name for path in paths])
        for arm, paths in arms.items()
    }
    for found in ({arm: next(iter(r)) if len(r) == 1 else "" for arm, r in recipes.items()}, starts):
        if all(found.values()) and len({*found.values()}) == len(arms):
            return found
    out: dict[str, str] = {}
    for arm, names in recipes.items():
        name = names.copy().pop() if len(names) == 1 else "several recipes"
        before = sum(told.startswith(f"{name} (") for told in out.values())
        out[arm] = f"{name} ({before + 1})"
    return out


def _name_recipe(run: Path) -> str:
    """Return the name of a run's recipe; for a run made by a claim, that of its arm."""
    for made in read_made(run)[:1]:
        return name_arm(str(made["method"]), str(made["arm"]), str(made["bed"]))
    return str(Run(run).recipe.get("name", ""))


def find_differences(recipes: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, list[Any]]]:
    """Return setting -> arm -> its different values, for settings that differ between runs; None: not set. Without
    seeds and titles."""
    leaves = {
        arm: [_list_settings(recipe) for recipe in some]
        for arm, some in recipes.items()
    }
    names = dict.fromkeys(
        name
        for some in leaves.values()
        for one in some
        for name in one
    )
    out = {}
    for name in names:
        found = {
            arm: list(dict.fromkeys(one.get(name) for one in some))
            for arm, some in leaves.items()
        }
        if len({
            value
            for values in found.values()
            for value in values
        }) > 1:
            out[name] = {
                arm: [None if v is None else json.loads(v) for v in values]
                for arm, values in found.items()
            }
    return out


def group_by_recipe(recipes: Mapping[str, Mapping[str, Any]]) -> tuple[list[list[str]], list[str]]:
    """Group runs (name -> recipe) by recipe. Returns (groups of names, in order; names left out because another run of
    the group has their seed). Seeds, titles and how work is distributed do not matter."""
    groups: dict[str, dict[Any, str]] = {}
    left = []
    for name, recipe in recipes.items():
        settings = {k: v for k, v in _list_settings(recipe).items() if not spreads(k)}
        group, seed = groups.setdefault(json.dumps(settings, sort_keys=True), {}), recipe.get("seed", 0)
        if seed in group:
            left.append(name)
        group.setdefault(seed, name)
    return [list(group.values()) for group in groups.values()], left


def _list_settings(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return dotted key -> value as JSON, for the settings of a recipe."""
    leaves = ((path, value) for path, value in walk_leaves(recipe) if path[0] not in TITLES and path[-1] != "seed")
    return {format_path(path): json.dumps(value, default=str, sort_keys=True) for path, value in leaves}


def _find_start(names: Sequence[str]) -> str:
    """Return the common start of some names, without the seed's suffix; a single name is returned as it is."""
    if len(names) == 1:
        return names[0]
    ends = zip(*names, strict=False)
    found = "".join(letters[0] for letters in takewhile(lambda letters: len({*letters}) == 1, ends))
    return re.sub(r"((^|[-_. /])(s|seed))?[-_. /]*$", "", found.rstrip("0123456789")) or found

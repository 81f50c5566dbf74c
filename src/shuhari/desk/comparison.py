"""Sets of runs side by side, each compared with the first: what the terminal and the board say.

Over seeds the interval of claims: Student's, of pairs of a seed, from five seeds on (`contrasts`). Beside it what
Agarwal et al. (2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice) give: the interquartile mean
with its bootstrap interval, and the performance profile. Nothing is drawn or stored. No torch.
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
from shuhari.lab.plot import find_series, find_start
from shuhari.store import Run
from shuhari.store.listing import find_tested, name_arm, name_task, read_made

FEWEST = 10  # problems, below which an interval of two runs says next to nothing
GREEDY = "evaluate/greedy"
TITLES = ("name", "summary", "paper", "claim", "format", "alone", "laid")  # of a recipe: say nothing of what it does

Columns = Mapping[str, Sequence[Any]]


class ComparisonError(ValueError):
    """Arms that cannot be compared; says which and why."""


def compare_seeds(
    arms: Mapping[str, Sequence[Path]], columns: Mapping[str, Sequence[Columns]], metric: str, over: str = "step"
) -> dict[str, dict[str, Any]]:
    """The last value of the metric in each run, or what a reading says (`metric:area`, over the column `over`);
    differences over seeds, paired where both arms have the same."""
    return compare_with_first(read_finals(arms, columns, metric, over), LEAST)


def read_finals(
    arms: Mapping[str, Sequence[Path]], columns: Mapping[str, Sequence[Columns]], metric: str, over: str = "step"
) -> dict[str, tuple[list[float], list[Any]]]:
    """(the values, the seeds) of each arm, by seed: the last of the metric, or a reading of its curve up to where all
    runs have come. ComparisonError where two runs of one have the same seed, and for no such metric or reading."""
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
    """The seed of a run."""
    return Run(path).recipe.get("seed", 0)


def read_last(columns: Columns, metric: str, path: Path) -> float:
    """The last value of a metric in a run. ComparisonError where there is none."""
    try:
        _, values = find_series(columns, metric)
    except KeyError as error:
        raise ComparisonError(f"{path}: {error.args[0]}") from None
    if not len(values):
        raise ComparisonError(f"{path} has no value of {metric} yet")
    return float(values[-1])


def read_reading(metric: str) -> Reading:
    """The reading of a curve that a text names, `evaluate/mean:area`. ComparisonError for what is none."""
    try:
        return Reading.of(metric)
    except ValueError as error:
        raise ComparisonError(str(error)) from None


def find_whole(columns: Mapping[str, Sequence[Columns]], over: str) -> float:
    """How far every run has come on the axis `over`."""
    tables = chain.from_iterable(columns.values())
    return min((float(table[over][-1] or 0.0) for table in tables if table.get(over)), default=math.nan)


def read_curve(reading: Reading, columns: Columns, over: str, path: Path, whole: float) -> float:
    """A reading of a run's curve over the column `over`, up to `whole`, begun with its score before the last stage.
    ComparisonError where the run has no such metric, or no value of it."""
    start = (Run(path).summary or {}).get("before") or {}
    try:
        return reading(columns, [float(x or 0.0) for x in columns[over]], start, whole, find_start(columns, over))
    except KeyError as error:
        raise ComparisonError(f"{path}: {error.args[0]}") from None


def find_starts(paths: Sequence[Path], columns: Sequence[Columns], metric: str, over: str) -> list[Any]:
    """(where its last stage begins on the axis `over`, its score there) of each run; None where it is not known."""
    out: list[Any] = []
    for path, table in zip(paths, columns, strict=True):
        before = (Run(path).summary or {}).get("before") or {}
        value = before.get(metric.removeprefix("evaluate/"), math.nan) if metric.startswith("evaluate/") else math.nan
        known = isinstance(value, int | float) and not math.isnan(value)
        out.append((find_start(table, over), float(value)) if known else None)
    return out


def list_caveats(found: Mapping[str, Mapping[str, Any]], single: bool, equal: bool = False) -> list[str]:
    """What the numbers do not tell. `equal`: every problem has the same grade on two arms."""
    others = list(found.values())[1:]
    if single:
        least = min(entry["n"] for entry in found.values())
        out = ["one run an arm: the interval is over problems, and tells of these runs; of their methods seeds tell"]
        if least < FEWEST:
            out.append(f"no interval: {least} held-out problem{'s' * (least != 1)}, and below {FEWEST} one says next "
                       "to nothing: give the task more, or ask for more with -n")  # fmt: skip
        elif equal:
            out.append(f"no interval: the runs differ by the same on each of {least} problems")
        return out
    out = [f"no interval of {name}: {entry['why']}" for name, entry in found.items() if entry.get("why")]
    if any(entry["low"] != entry["low"] and not entry.get("why") for entry in others):
        least = min(entry["n"] for entry in found.values())
        out.append(f"no interval: {least} seed{'s' * (least != 1)} an arm, and below {LEAST} one says next to nothing: "
                   "train more seeds (--seed), the same on each arm")  # fmt: skip
    if not all(entry["paired"] for entry in others):
        out.append("arms of different seeds are not paired, which costs precision: give each the same seeds")
    return out


def check_same_task(paths: Sequence[Path]) -> None:
    """ComparisonError where runs are tested on different tasks: their numbers mean different things."""
    tasks = {path: name_task(find_tested(Run(path).recipe)) for path in paths}
    first, other = paths[0], next((p for p in paths if tasks[p] != tasks[paths[0]]), None)
    if other is not None:
        raise ComparisonError(f"{first} solves {tasks[first]}, {other} solves {tasks[other]}: expected one task")


def list_measures(arms: Mapping[str, Sequence[Path]]) -> list[str]:
    """The rewards that the evaluations of the runs read, each once; of those that say it."""
    found = [
        str(Run(path).get("measure") or "")
        for paths in arms.values()
        for path in paths
    ]
    return [name for name in dict.fromkeys(found) if name]


def find_axis(columns: Mapping[str, Sequence[Columns]], paths: Sequence[Path]) -> str:
    """What all runs spent of the budget that they have alike; `step` where they have different ones."""
    tables = [
        table
        for arm in columns.values()
        for table in arm
    ]
    found = {find_unit(Run(path).recipe, table) for path, table in zip(paths, tables, strict=True)}
    return found.pop() if len(found) == 1 else "step"


def name_arms(arms: Mapping[str, Sequence[Path]]) -> dict[str, str]:
    """A short name of each arm: of its recipe, or of its arm in a claim, where the others have another; else what the
    names of its runs begin with; else the recipe's and a number."""
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
    """The name of a run's recipe; of a run that a claim has made that of its arm."""
    for made in read_made(run)[:1]:
        return name_arm(str(made["method"]), str(made["arm"]), str(made["bed"]))
    return str(Run(run).recipe.get("name", ""))


def find_differences(recipes: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, list[Any]]]:
    """Setting -> arm -> its values there, each once, of the settings that are not the same everywhere; None: not set.
    Without seeds and titles."""
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
    """(runs of one recipe each, in their order; those left out, as another of their arm has their seed), of run ->
    recipe. Seeds, titles and how the work is spread make no other recipe."""
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
    """Dotted key -> value as JSON, of what a recipe does."""
    leaves = ((path, value) for path, value in walk_leaves(recipe) if path[0] not in TITLES and path[-1] != "seed")
    return {format_path(path): json.dumps(value, default=str, sort_keys=True) for path, value in leaves}


def _find_start(names: Sequence[str]) -> str:
    """What some names begin with, without the mark of a seed; of one the name itself."""
    if len(names) == 1:
        return names[0]
    ends = zip(*names, strict=False)
    found = "".join(letters[0] for letters in takewhile(lambda letters: len({*letters}) == 1, ends))
    return re.sub(r"((^|[-_. /])(s|seed))?[-_. /]*$", "", found.rstrip("0123456789")) or found

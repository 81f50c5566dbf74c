"""Sets of runs side by side, each compared with the first: what the terminal and the board say.

Over seeds the interval of claims: Student's, of pairs of a seed, from five seeds on. Beside it what Agarwal et al.
(2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice) give: the interquartile mean with its
bootstrap interval, and the performance profile. Nothing is drawn or stored. No torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

from shuhari.config.dumps import spreads
from shuhari.config.overlay import format_path, walk_leaves
from shuhari.desk.ends import find_unit
from shuhari.kernel import stats
from shuhari.lab.claims.verdict import LEAST
from shuhari.lab.plot import find_series
from shuhari.store import Run
from shuhari.store.listing import find_tested, name_task

FEWEST = 10  # problems, below which an interval of two runs says next to nothing
GREEDY = "evaluate/greedy"
TITLES = ("name", "summary", "paper", "claim", "format", "alone", "laid")  # of a recipe: say nothing of what it does

Columns = Mapping[str, Sequence[Any]]


class ComparisonError(ValueError):
    """Arms that cannot be compared; says which and why."""


def compare_seeds(
    arms: Mapping[str, Sequence[Path]], columns: Mapping[str, Sequence[Columns]], metric: str
) -> dict[str, dict[str, Any]]:
    """The last value of the metric in each run; differences over seeds, paired where both arms have the same."""
    return compare_with_first(read_finals(arms, columns, metric), LEAST)


def read_finals(
    arms: Mapping[str, Sequence[Path]], columns: Mapping[str, Sequence[Columns]], metric: str
) -> dict[str, tuple[list[float], list[Any]]]:
    """(the last values, the seeds) of each arm, by seed. ComparisonError where two runs of one have the same."""
    found: dict[str, tuple[list[float], list[Any]]] = {}
    for name, paths in arms.items():
        rows = [(read_seed(p), read_last(c, metric, p)) for p, c in zip(paths, columns[name], strict=True)]
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


def compare_with_first(found: Mapping[str, tuple[list[float], list[Any]]], least: int = 2) -> dict[str, dict[str, Any]]:
    """Values by their ids, of each arm; an interval from `least` values an arm on."""
    first, names = next(iter(found.values()))
    out: dict[str, dict[str, Any]] = {}
    for i, (name, (values, ids)) in enumerate(found.items()):
        graded = [v for v in values if v == v]
        out[name] = {"value": fmean(graded) if graded else float("nan"), "n": len(graded)}
        if i:
            paired = ids == names and len(set(ids)) == len(ids)
            e = stats.difference(first, values, paired=paired)
            low, high = (e.low, e.high) if e.n >= least else (float("nan"), float("nan"))
            out[name] |= {"difference": e.value, "low": low, "high": high, "paired": paired}
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
    out = []
    if any(entry["low"] != entry["low"] for entry in others):
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
    """A short name of each arm: of its recipe where the others have another; else what the names of its runs begin
    with; else itself."""
    recipes = {
        arm: {str(Run(path).recipe.get("name", "")) for path in paths}
        for arm, paths in arms.items()
    }
    starts = {
        arm: _find_start([path.name for path in paths])
        for arm, paths in arms.items()
    }
    for found in ({arm: next(iter(r)) if len(r) == 1 else "" for arm, r in recipes.items()}, starts):
        if all(found.values()) and len({*found.values()}) == len(arms):
            return found
    return {arm: arm for arm in arms}


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

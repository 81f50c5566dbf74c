"""Recipes as runs have stored them (`recipe.dump`): read, and compared setting by setting. No torch."""

from __future__ import annotations

import tomllib
from typing import Any

from shuhari.config.older import translate
from shuhari.config.overlay import REMOVE, Path, RecipeError, Tree, format_path, split_path, walk_leaves
from shuhari.kernel.registry import list_declaring

SOLE = ("engine", "rollout", "curriculum")  # sections of one component, which is a kind of that name


def find_differences(there: str, here: str) -> dict[str, tuple[Any, Any]]:
    """Return dotted key -> (value there, value here) of the settings in which two dumps differ; None: not set."""
    theirs, ours = (_flatten(text) for text in (there, here))
    keys = [k for k in dict.fromkeys([*ours, *theirs]) if ours.get(k) != theirs.get(k)]
    return {format_path(k): (theirs.get(k), ours.get(k)) for k in keys}


def spreads(key: str) -> bool:
    """Whether a dotted key only affects how the work is distributed, not what is done, for the run or for a stage of
    it. A run may continue with another value; bits may then differ by rounding. Components declare theirs."""
    path = split_path(key)
    path = path[2:] if path[0] == "stage" else path
    if len(path) == 1 or path[0] == "distributed":
        return path[0] in ("distributed", "threads", "micro_batch")
    own = list_declaring(path[0], "spreads") if len(path) == 2 and path[0] in SOLE else {}
    return any(path[1] in names for names in own.values())


def _flatten(text: str) -> dict[Path, Any]:
    leaves = walk_leaves(read_dump(text))
    return {path: sorted(value) if path[-1] == REMOVE else value for path, value in leaves}


def read_dump(text: str) -> Tree:
    """Return the tree of a dump, `stage` as name -> overlay. RecipeError for stages that are no tables with names."""
    stages = (tree := tomllib.loads(text)).get("stage", [])
    if not isinstance(stages, list) or not all(isinstance(s, dict) and isinstance(s.get("name"), str) for s in stages):
        raise RecipeError("stage", f"{stages!r:.80}: expected tables [[stage]], each with a name")
    tree = translate(tree)
    return {**tree, "stage": {s["name"]: s for s in tree.get("stage", [])}}

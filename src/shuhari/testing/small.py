"""Recipes made small enough for a test: the same components, tiny models, a few steps."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any

from shuhari.config.overlay import BUDGETS
from shuhari.config.recipe import Recipe
from shuhari.config.smaller import cap, cap_buffer
from shuhari.kernel import registry

# a number of a recipe that is larger than this is made so
LEAST: dict[tuple[str, ...], int] = {
    ("models", "*", "hidden"): 16, ("models", "*", "layers"): 1, ("models", "*", "heads"): 2,
    ("models", "*", "intermediate"): 16, ("rollout", "n"): 4, ("rollout", "lanes"): 2, ("rollout", "random"): 8,
    ("rollout", "sampling", "max_new"): 32, ("buffer", "data", "episodes"): 8,
    ("buffer", "data", "parts", "*", "episodes"): 3,
    ("part", "*", "epochs"): 2, ("part", "*", "minibatches"): 2,
    ("evaluate", "n"): 4, ("evaluate", "samples"): 2, ("evaluate", "watch"): 4,
}  # fmt: skip
HELD_OUT = 16  # problems of a test split that a task makes
ASKED = {"exact": 2, "localisation": 2}  # metrics that ask a policy about `n` problems by themselves -> at most so many


def shrink(recipe: Recipe, steps: int = 2, **settings: Any) -> Recipe:
    """The recipe with models of 16 units and one layer, batches of a few, at most four samples a problem, two epochs of
    two minibatches, no workers, and `steps` steps a stage, evaluated at the last on a few problems, also by metrics.
    The reward of a text also depends on its length being odd, since models as small as these are never right.
    `settings`: dotted keys that override it, with `__` for a dot."""
    tree: dict[str, Any] = deepcopy(dict(recipe.tree))
    _shrink(tree, steps, top=True)
    if "sampling" in tree.get("rollout", {}) and tree["rollout"].get("use") != "vector":
        rewards = tree.setdefault("reward", {})
        rewards["oddness"] = {"use": f"{__name__}.oddness"}
        if "weights" in rewards:
            rewards["weights"]["oddness"] = 1.0
    for stage in tree.get("stage", {}).values():
        _shrink(stage, steps, top=False)
    small = Recipe(recipe.name, tree, recipe.sources)
    return small.with_settings({k.replace("__", "."): v for k, v in settings.items()}) if settings else small


def oddness(completions: list[str]) -> list[float]:
    """Return a reward of 1 for texts of odd length, which half of all texts are."""
    return [float(len(text) % 2) for text in completions]


def _shrink(table: dict[str, Any], steps: int, *, top: bool) -> None:
    for unit in BUDGETS:
        if unit != "steps":
            table.pop(unit, None)
    if (top or "steps" in table) and table.get("steps") != 0:  # it only measures
        table["steps"] = steps
    for place, least in LEAST.items():
        cap(table, place, least)
    _hold_out_few(table.get("task"))
    if "buffer" in table:
        cap_buffer(table["buffer"], lanes="lanes" in table.get("rollout", {}))
    if "evaluate" in table and (top or "every" in table["evaluate"]) and table["evaluate"].get("every") != 0:
        table["evaluate"]["every"] = steps
    for name, metric in table.get("evaluate", {}).get("metrics", {}).items():
        if isinstance(metric, dict) and (most := ASKED.get(metric.get("use", name))):
            metric["n"] = min(metric.get("n") or most, most)  # 0: all that there are
    for key in ("workers", "ring"):
        table.get("rollout", {}).pop(key, None)


def _hold_out_few(task: Any) -> None:
    """Make the test split of a task small, in place; a task without a size for its test split is left as it is."""
    named = isinstance(task, dict) and isinstance(task.get("name"), str)
    with suppress(LookupError):
        cls = registry.find("task", task["name"].partition("/")[0]) if named else None
        if cls is not None and is_dataclass(cls) and any(f.name == "test_size" for f in fields(cls)):
            task["test_size"] = min(task.get("test_size", HELD_OUT), HELD_OUT)

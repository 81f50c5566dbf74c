"""Held-out measurement of a run that is on disk: a checkpoint of it, opened read-only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shuhari.loop.evaluation import Evaluation, evaluate
from shuhari.loop.opening import open_checkpoint
from shuhari.loop.outcomes import Outcomes, name_measure


@dataclass(frozen=True, eq=False)
class Measured:
    """What was found of a checkpoint: the settings `used`, the reward that is its `measure`, its `step`, and what went
    wrong, each message once."""

    outcomes: Outcomes
    used: Evaluation
    measure: str
    step: int
    problems: tuple[str, ...]


def measure(
    path: Path, step: int | None, settings: Mapping[str, Any], tasks: dict[str, Any] | None = None
) -> Measured:
    """A run's checkpoint (None: the last) on held-out problems, under [evaluate] of its recipe with `settings` in place
    of those there. `tasks` is filled: runs of one table of the task that is tested, which share it, see the same
    problems, whatever their seeds. Nothing is stored. StoreError where there is no checkpoint, RecipeError for a split
    that the task has not."""
    with open_checkpoint(path, step) as opened:
        used = replace(opened.stage.evaluate or Evaluation(), **settings)
        if tasks is not None:
            table = json.dumps(find_tested(opened.recipe.tree), sort_keys=True)
            used = replace(used, task=tasks.setdefault(table, used.task or opened.ctx.task))
        outcomes = evaluate(opened.ctx, used, opened.stage.evaluation_rollout)
        name = name_measure(used.measure, opened.ctx)
        return Measured(outcomes, used, name, opened.ctx.step, tuple(dict.fromkeys(opened.ctx.problems)))


def find_tested(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table of the task that a recipe's runs are tested on."""
    found: Mapping[str, Any] = recipe.get("evaluate", {}).get("task") or recipe.get("task", {})
    return found

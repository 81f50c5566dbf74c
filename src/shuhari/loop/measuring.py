"""Held-out measurement of a run that is on disk: a checkpoint of it, opened read-only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.config.evaluation import Evaluation
from shuhari.data import EMPTY
from shuhari.loop.evaluation import evaluate, find_held_out, has_player, score_recorded
from shuhari.loop.opening import open_checkpoint
from shuhari.loop.outcomes import Outcomes, name_measure
from shuhari.store.listing import find_tested


@dataclass(frozen=True, eq=False)
class Measured:
    """What was found of a checkpoint: the settings `used`, the reward that is its `measure`, its `step`, and what went
    wrong, each message once. `recorded`: what its learners say of `count` held-out recorded problems, such as the share
    of pairs whose better answer they prefer, `<part>/accuracy`. Where no model plays, the outcomes are of none."""

    outcomes: Outcomes
    used: Evaluation
    measure: str
    step: int
    problems: tuple[str, ...]
    recorded: Mapping[str, float] = field(default=EMPTY)
    count: int = 0

    @property
    def scores(self) -> dict[str, float]:
        """All of it as numbers by name, as a run reports them."""
        return {**(self.outcomes.scores(self.used) if self.outcomes.ids else {}), **self.recorded}


def measure(path: Path, step: int | None, settings: Mapping[str, Any], tasks: dict[str, Any] | None = None) -> Measured:
    """A run's checkpoint (None: the last) on held-out problems, under [evaluate] of its recipe with `settings` in place
    of those there. `tasks` is filled: runs of one table of the task that is tested, which share it, see the same
    problems, whatever their seeds. Nothing is stored. StoreError where there is no checkpoint, RecipeError for a split
    that the task has not."""
    with open_checkpoint(path, step) as opened:
        used = replace(opened.stage.evaluate or Evaluation(), **settings)
        if tasks is not None:
            table = json.dumps(find_tested(opened.recipe.tree), sort_keys=True)
            used = replace(used, task=tasks.setdefault(table, used.task or opened.ctx.task))
        ctx, rollout = opened.ctx, opened.stage.evaluation_rollout
        outcomes = evaluate(ctx, used, rollout) if has_player(ctx, rollout) else Outcomes([], np.zeros(0), None)
        recorded = score_recorded(ctx, used, opened.stage.learners)
        size = find_held_out(used.task or ctx.task, used).size()
        count = used.n if size is None else min(used.n, size)
        name, problems = name_measure(used.measure, ctx), tuple(dict.fromkeys(ctx.problems))
        return Measured(outcomes, used, name, ctx.step, problems, recorded, count)

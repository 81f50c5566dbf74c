"""Held-out measurement of a stored run: one of its checkpoints, opened read-only. Nothing is stored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shuhari.config.evaluation import Evaluation
from shuhari.data import EMPTY, Status, Trajectory
from shuhari.loop.evaluation import Played, count_held_out, measures, play_models, score_recorded
from shuhari.loop.opening import open_checkpoint
from shuhari.loop.outcomes import Outcomes
from shuhari.store.listing import find_tested


@dataclass(frozen=True, eq=False)
class Measured:
    """The results of a checkpoint: the evaluation as `used`, the reward that is its `measure`, its `step`, and what
    went wrong, each message once. `ways`: each further way to play, with its settings and outcomes; `numbers`: of
    metrics; `settings`: what overrode the run's own recipe. `recorded`: its learners' scores on `count` held-out
    recorded problems, such as the share of pairs whose better answer they prefer, `<part>/accuracy`. If no model plays,
    the outcomes are empty. `played`: the graded greedy episode of each problem."""

    outcomes: Outcomes
    used: Evaluation
    measure: str
    step: int
    problems: tuple[str, ...]
    recorded: Mapping[str, float] = field(default=EMPTY)
    count: int = 0
    ways: Mapping[str, tuple[Evaluation, Outcomes]] = field(default=EMPTY)
    numbers: Mapping[str, float] = field(default=EMPTY)
    settings: Mapping[str, Any] = field(default=EMPTY)
    played: Sequence[Trajectory] = field(default=(), repr=False)

    @property
    def cut(self) -> int:
        """Number of greedy episodes that a limit of length or time has truncated."""
        return sum(episode.status is Status.TRUNCATED for episode in self.played)

    @property
    def scores(self) -> dict[str, float]:
        """All results as numbers by name, as a run reports them."""
        played = Played(self.used, self.outcomes if self.outcomes.ids else None, self.ways, self.numbers)
        return {**played.scores, **self.recorded}


def measure(
    path: Path,
    step: int | None,
    settings: Mapping[str, Any],
    tasks: dict[str, Any] | None = None,
    *,
    over: Mapping[str, Any] = EMPTY,
    further: bool = True,
) -> Measured:
    """Measure a run's checkpoint (None: the last) on held-out problems, by [evaluate] of its recipe with `settings` in
    place of its own. `over`: settings of `evaluate` and of `rollout.sampling`, dotted key -> value, applied to the
    recipe first. `further`: whether to include the further ways to play, and the metrics, of the recipe. `tasks` is
    filled: runs that share it, and have the same table of the tested task, see the same problems, whatever their seeds.
    Raises StoreError if there is no checkpoint, RecipeError for a split that the task does not have, and for a setting
    of anything else."""
    with open_checkpoint(path, step, over=over) as opened:
        used = replace(opened.stage.evaluate or Evaluation(), **settings)
        if tasks is not None:
            table = json.dumps(find_tested(opened.recipe.tree), sort_keys=True)
            used = replace(used, task=tasks.setdefault(table, used.task or opened.ctx.task))
        used = used if further else replace(used, more=EMPTY, metrics=EMPTY)
        ctx, rollout = opened.ctx, opened.stage.evaluation_rollout
        if not measures(used):
            raise ValueError("[evaluate] n is 0, which plays nothing: expected a number of problems")
        ctx.probed = []
        found = play_models(ctx, used, rollout)
        recorded = score_recorded(ctx, used, opened.stage.learners)
        outcomes = Outcomes([], np.zeros(0), None) if found.outcomes is None else found.outcomes
        problems = tuple(dict.fromkeys(ctx.problems))
        count = count_held_out(ctx, used)
        return Measured(outcomes, used, outcomes.measure, ctx.step, problems, recorded, count, found.ways,
                        found.numbers, dict(over), list_greedy(ctx.probed))  # fmt: skip


def list_greedy(groups: Iterable[Sequence[Trajectory]]) -> list[Trajectory]:
    """Return the first greedy episode of each problem, from graded groups."""
    found: dict[tuple[str, str], Trajectory] = {}
    for request, group in ((g[0].request, g) for g in groups if g):
        if request.n == 1 and request.sampling is not None and request.sampling.greedy:
            found.setdefault((request.problem.task, request.problem.id), group[0])
    return list(found.values())


def sets_samples(settings: Mapping[str, Any]) -> bool:
    """Whether settings, dotted key -> value, set the number of samples of a problem."""
    table = settings.get("evaluate")
    return "evaluate.samples" in settings or (isinstance(table, Mapping) and "samples" in table)

"""The random baseline of a run: the score of random choices on its held-out problems.

For a controller it is a policy of uniformly random actions, of those that a mask allows, on the first EPISODES episodes
that evaluation plays, or would; for a task that lists all possible answers to a problem, a uniform choice among them.
For other text tasks it is unknown and left out. Only the run's task is used: the actions of an episode come from a
random stream of their own, the same in every run.
"""

from __future__ import annotations

import inspect
import logging
from copy import deepcopy
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from shuhari.config.evaluation import Evaluation
from shuhari.data import Problem, Status, Step, code, read_first
from shuhari.loop.evaluation import find_held_out
from shuhari.loop.outcomes import name_measure
from shuhari.ports.hooks import ability
from shuhari.tasks.snapshots import sample_action

if TYPE_CHECKING:
    from shuhari.loop.context import Context

EPISODES = 20  # at most, the first ones


def measure_chance(ctx: Context, evaluation: Evaluation | None, rollout: Any) -> dict[str, float]:
    """Return `greedy`, the baseline's score by the measure of evaluation, and `length`, the decisions of its episodes.
    `rollout`: that of the evaluation, whose limit of steps applies. Returns nothing if the score is unknown, nothing is
    played, or several roles play; if episodes cannot be played, the log says why."""
    if evaluation is None or not evaluation.n or len(ability(rollout, "roles")) > 1:
        return {}
    measure = name_measure(evaluation.measure, ctx.reward_names, ctx.weights)
    task = evaluation.task or ctx.task
    try:
        problems = read_first(find_held_out(task, evaluation), EPISODES)
        if listed := _average_answers(task, problems) if measure == "score" else {}:
            return listed
        limits = {**dict(rollout.accepts), **evaluation.settings}
        return _play(task, problems, measure, int(limits.get("max_steps", 1000)))
    except (ValueError, TypeError, LookupError, RuntimeError) as error:
        logging.getLogger("shuhari").warning("what chance scores is not known: %s", error)
        return {}


def _average_answers(task: Any, problems: list[Problem]) -> dict[str, float]:
    """Return the mean score of all possible answers to the problems; empty if they are not listed."""
    means = []
    for problem in problems:
        found = ability(task, "answers")(problem)
        if found is None or not found.complete:
            return {}
        means.append(fmean(found.scores))
    return {"greedy": fmean(means)}


def _play(task: Any, problems: list[Problem], measure: str, limit: int) -> dict[str, float]:
    """Return the scores of random actions; empty for text, and for a measure that neither environment nor task gives.
    """
    found, scores, lengths = task.spaces(), list[float](), list[int]()
    for problem in problems if found is not None else ():
        env = task.environment(problem)
        if env is None:
            return {}
        try:
            steps = play_randomly(env, problem, found[1], limit)
        finally:
            ability(env, "close")()
        paid = [step.reward[measure] for step in steps if measure in step.reward]
        graded: Any = {measure: sum(map(float, paid))} if paid else task.grade(problem, steps) or {}
        if measure not in graded:
            return {}
        scores.append(float(graded[measure]))
        lengths.append(len(steps) - 1)
    return {"greedy": fmean(scores), "length": fmean(lengths)} if scores else {}


def play_randomly(env: Any, problem: Problem, space: Any, limit: int) -> list[Step]:
    """Return the steps of an episode of uniformly random actions, and a closing one; at most `limit` decisions. Raises
    TypeError for an environment whose steps are coroutines."""
    space, seen = deepcopy(space), env.reset(problem)
    space.seed(code("chance", problem.task, problem.id) % 2**31)
    steps, status = list[Step](), None
    while status is None and len(steps) < limit:
        action = np.asarray(sample_action(space, seen))
        answer = env.step(action)
        if inspect.isawaitable(answer):
            raise TypeError(f"{type(env).__name__}.step is a coroutine function: it is not played for chance")
        steps.append(Step.of(seen, action, reward=dict(answer[1])))
        seen, status = answer[0], answer[2]
    return [*steps, Step.closing(seen, None, 0.0 if status is Status.FINISHED else 1.0)]

"""Checks that a stage meets the `[needs]` of the methods laid over it, and that it has the scores and terms that its
components wait for.

| need        | met by                                                                  |
|-------------|-------------------------------------------------------------------------|
| `groups`    | so many samples a problem, or more; lanes of environments have none     |
| `steps`     | so many optimiser steps a batch, or more, of the part that trains `policy` |
| `text`      | a task of text                                                          |
| `lanes`     | a rollout that steps environments side by side                          |
| `solutions` | problems with a solution in text                                        |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from shuhari.config.evaluation import PLAYED, Evaluation
from shuhari.config.overlay import NEEDS, RecipeError, format_path
from shuhari.config.stage import walk_learners
from shuhari.data import nearest
from shuhari.kernel.state import walk
from shuhari.ports import ability, is_vector

if TYPE_CHECKING:
    from shuhari.config.stage import Components

LANES = "of lanes of environments, which are one sample each: play whole episodes (rollout.use = 'episode')"


def check_needs(stage: Components) -> None:
    """Raise RecipeError, with what to set, if a stage that samples lacks what a method laid over it needs."""
    if not any(learner.buffer.wanted() > 0 for learner in stage.learners.values()):
        return
    for name, needs in stage.laid.items():
        if not isinstance(needs, Mapping):
            raise RecipeError(f"laid.{format_path((name,))}", f"{needs!r:.60}: expected a table of what a method needs")
        for need, value in needs.items():
            if need not in NEEDS:
                raise RecipeError(
                    f"laid.{format_path((name, need))}", f"no such need of a method; {nearest(need, NEEDS)}"
                )
            if isinstance(value, bool | float | str | list | dict) and value not in (True, False):
                message = f"{value!r:.60}: expected a whole number, or true or false"
                raise RecipeError(f"laid.{format_path((name, need))}", message)
            if value and (lack := LACKS[need](stage, value)):
                raise RecipeError(lack[0], f"{lack[1]} in stage {stage.name!r}: {name} needs {lack[2]}")


def describe_needs(needs: Mapping[str, Any]) -> str:
    """Describe in words what a method needs of a base; "" if it needs nothing."""
    words = {"groups": "{} samples of a problem", "steps": "{} optimiser steps a batch", "text": "a task of text",
             "lanes": "environments side by side", "solutions": "problems with a solution"}  # fmt: skip
    return ", ".join(words[need].format(value) for need, value in needs.items() if value and need in words)


def check_plateaus(stage: Components) -> None:
    """Raise RecipeError, with what to set, if something waits for a plateau of a score that will not be evaluated."""
    waiting: list[tuple[tuple[str, ...], Any]] = [(("follow", role), follow) for role, follow in stage.follows.items()]
    waiting += [((*place, "part"), learner) for place, learner in walk_learners(stage.learners)]
    for root, component in waiting:
        for _, part in walk(component):
            if score := ability(part, "waits_for"):
                why = f"{format_path(root)} waits for a plateau of {score!r} in stage {stage.name!r}"
                _check_waited(score, why, stage.evaluate)


def check_levels(stage: Components) -> None:
    """Raise RecipeError if a loss of the policy takes the mean of a row's decisions, and rows have one each: the
    setting would change nothing there."""
    policy = stage.models.get("policy")
    if stage.task.spaces() is None or policy is None or ability(policy.model, "kind") != "exact":
        return
    for place, learner in walk_learners(stage.learners):
        for name, part in ability(learner, "parts").items():
            for t, term in part.terms.items():
                if vars(term.objective).get("level") == "sequence":
                    key = format_path((*place, "part", name, "terms", t, "level"))
                    why = "here a row is one action, so that a sequence is its decision; expected 'decision'"
                    raise RecipeError(key, f"'sequence' in stage {stage.name!r}: {why}")


def check_terms(stage: Components) -> None:
    """Raise RecipeError if an optimiser uses terms by name, and its part lacks a required one, has one that is not
    allowed, or has no further term, which is the loss."""
    for place, learner in walk_learners(stage.learners):
        for name, part in ability(learner, "parts").items():
            if not (known := ability(part.optimiser, "terms")):
                continue
            at, who = (*place, "part", name, "terms"), f"{type(part.optimiser).__name__}, as it is set,"
            for term, must in known.items():
                if must and term not in part.terms:
                    why = f"none in stage {stage.name!r}, and {who} needs it; {nearest(term, part.terms)}"
                    raise RecipeError(format_path((*at, term)), why)
                if not must and term in part.terms:
                    why = f"one in stage {stage.name!r}, for which {who} has no use: expected none"
                    raise RecipeError(format_path((*at, term)), why)
            if not part.terms.keys() - known:
                why = f"{', '.join(part.terms)} in stage {stage.name!r}: {who} needs a loss beside them"
                raise RecipeError(format_path(at), why)


def _check_waited(score: str, why: str, evaluation: Evaluation | None) -> None:
    name = re.split("[.@]", score)[0]  # of `greedy.style`, `pass@8`, `exact.mean`
    played = name in PLAYED and name != "tokens"
    if evaluation is None or (played and not (evaluation.n or evaluation.watch)):
        raise RecipeError("evaluate.n", f"0: {why}, and nothing is played: expected 1 or more")
    if name in ("mean", "pass", "distinct") and evaluation.samples < 2:
        raise RecipeError("evaluate.samples", f"{evaluation.samples}: {why}, which is of 2 samples or more")
    if not played and evaluation.watch:
        expected = "these problems are only played: expected 0, or a plateau of a score of that, such as 'greedy'"
        raise RecipeError("evaluate.watch", f"{evaluation.watch}: {why}, and {expected}")
    beside = {*evaluation.metrics, *evaluation.more, *(["tokens"] if evaluation.more else [])}
    if not (played or name in beside or "/" in score):  # with a slash it is a learner's
        raise RecipeError("evaluate", f"{why}, and nothing gives it; {nearest(name, beside | {*PLAYED})}")


def _groups(stage: Components, least: int) -> tuple[str, str, str] | None:
    if is_vector(stage.rollout):
        return "rollout.n", "samples", f"{least} or more of a problem, not {LANES}"
    return ("rollout.n", f"{stage.n}", f"{least} or more samples of a problem") if stage.n < least else None


def _steps(stage: Components, least: int) -> tuple[str, str, str] | None:
    for place, learner in walk_learners(stage.learners):
        for name, part in ability(learner, "parts").items():
            if "policy" in part.trains and part.minibatches * part.epochs < least:
                steps = part.minibatches * part.epochs
                expected = f"{least} or more optimiser steps a batch, not {steps}: as many minibatches or epochs"
                return format_path((*place, "part", name, "minibatches")), f"{part.minibatches}", expected
    return None


def _text(stage: Components, _: Any) -> tuple[str, str, str] | None:
    return ("task", "no text", "a task of text") if stage.task.spaces() is not None else None


def _lanes(stage: Components, _: Any) -> tuple[str, str, str] | None:
    expected = "environments that are stepped side by side (use = 'vector')"
    return None if is_vector(stage.rollout) else ("rollout", type(stage.rollout).__name__.lower(), expected)


def _solutions(stage: Components, _: Any) -> tuple[str, str, str] | None:
    wanted = "problems with a solution, or task.columns that name one"
    if stage.task.spaces() is not None:
        return "task", "no text", wanted
    source = stage.task.problems("train")
    n = source.size()
    for i in range(min(n, 64) if n is not None else 1):
        if source[i].solution is None:
            return "task", f"problem {source[i].id!r} has no solution", wanted
    return None


LACKS: Mapping[str, Callable[[Any, Any], tuple[str, str, str] | None]] = MappingProxyType(
    {"groups": _groups, "steps": _steps, "text": _text, "lanes": _lanes, "solutions": _solutions}
)

"""Regrades stored rollouts: what every reward, the trained one and group advantages would have been under another
grader.

Graders are called as in training (`loop.collect.grade_group`): one that raises gives no grade, which is counted and
shown, and never taken for 0. Unchanged graders are not called again. Left out: graders that call the run's own models
(these are not loaded), and how the policy would have developed. Axes: `E` episodes of a group (leaves of a tree).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shuhari.config.overlay import RecipeError, format_path, split_path
from shuhari.config.recipe import Recipe
from shuhari.config.stage import Components
from shuhari.data import Array, Trajectory, copy_with, find_outcomes, sum_reward
from shuhari.desk.handed import without_functions
from shuhari.desk.replay.steps import (
    change_recipe,
    choose_steps,
    describe_steps,
    find_stage,
    find_state,
    finite,
    list_keys,
    of_stage,
    set_state,
)
from shuhari.engines.clock import run_together
from shuhari.loop.checks import make_stages
from shuhari.loop.collect import grade_group
from shuhari.loop.context import Context
from shuhari.loop.opening import read_recipe
from shuhari.loop.run import Run
from shuhari.ports.declares import declares
from shuhari.store import Run as Stored
from shuhari.store import resolve

ALIKE = 1e-6  # a spread of outcomes up to which a group has no gradient, as in `rollout/alike`
TRAINED = ""  # the name of the trained reward: a grader may be called "reward"


@dataclass(eq=False)
class RegradedGroup:
    """A group as it was graded, and as it would be: reward name -> [E], TRAINED among them, NaN if ungraded. `texts`:
    how each episode begins; `asked`: the rewards that were graded again."""

    step: int
    key: str
    texts: list[str]
    old: dict[str, Array]
    new: dict[str, Array]
    asked: frozenset[str] = field(default=frozenset())


def regrade(
    run: str, rewards: Sequence[str] = (), *, first: int | None = None, last: int | None = None,
    sets: Sequence[str] = (), limit: int = 10, told: Callable[[int], None] = lambda step: None,
) -> dict[str, Any]:  # fmt: skip
    """Grade the groups that a run (a path, a name under runs/, `latest`) has stored of steps `first` to `last`
    (default: all) again, and return what would change, as plain values.

    rewards: `USE` or `NAME=USE`, as in `[reward.<name>] use`: the name of a reward, a dotted path, or
    `file.py:function`; the name defaults to the function's. sets: `reward.<name>.<setting>=value`,
    `reward.weights.<name>=value`. limit: most episodes to list, largest change first. told: called after each step.

    Returns `run`, `steps`, `groups`, `episodes` (numbers), `whole` (whether the run stores every group), `graders`
    (name -> use, of those called), `weights` {old, new} of the last step, and:

    `rewards`: name -> {old, new: {mean, graded, ungraded}, changed, lost, gained}: episodes with another number, whose
    grade is lost, or gained; old or new is None if nobody gives such a reward. `reward`: the same for the trained sum;

    `advantage`, of the outcome minus the mean of its group: episodes `compared`, with the `other_sign`, with a sign now
    but not before (`gained`), before but not now (`lost`);

    `mixed` {old, new}: number of groups whose outcomes differ; `to_mixed`, `to_alike`, `to_ungraded`: the groups that
    change to this, {step, group};

    `changed`: number of episodes with another grade; `changes`: the first of them, {step, group, episode, old, new,
    rewards: name -> [old, new], text};

    `failed`: calls of a grader that raised an error, `problems`: their first messages.

    Raises ValueError if the run stores no rollouts, or nothing differs; RecipeError for an unknown grader;
    ContractError for a grader that returns no valid grade.
    """
    path = resolve(run)
    stored, named = Stored(path), dict(map(read_reward, rewards))
    steps, columns, before = choose_steps(stored, first, last), stored.metrics(), read_recipe(path)
    added = [f"reward.{format_path((name,))}.use={json.dumps(use)}" for name, use in named.items()]
    after, given = change_recipe(before, [*added, *sets])
    for key in list_keys(given):
        if of_stage(split_path(key))[0] != "reward":
            raise RecipeError(key, "expected a setting of a grader, reward.*: only graders run again")
    groups, used, weights, whole = list[RegradedGroup](), dict[str, str](), dict[str, Any](), True
    with without_functions(before):
        olds = make_stages(before)
        with Run(after) as opened:
            ctx = opened.ctx
            for step in steps:
                state = find_state(columns, step)
                set_state(opened, state)
                old, new = (find_stage(stages, state.stage) for stages in (olds, opened.progress.stages))
                asked = _find_asked(before, after, new, named)
                if not asked and old.weights == new.weights:
                    raise ValueError(f"no grader of stage {old.name!r} differs: name one, or a setting reward.<name>.*")
                used |= {name: _describe_use(after, state.stage, name) for name in asked}
                _enter(ctx, new, asked)
                kept = stored.rollouts(step)
                whole = whole and all(g.get("why") == "all" for g in kept)
                groups += _grade(kept, step, old, new, asked, ctx)
                told(step)
                weights = {
                    n: {k: ctx.at(w) for k, w in s.weights.items()}
                    for n, s in (("old", old), ("new", new))
                }
            failed, problems = int(ctx.ledger.get(FAILED, 0)), list(ctx.problems)
    facts = {"run": str(path), "steps": steps, "whole": whole, "graders": used, "weights": weights}
    return {**facts, **summarise(groups, limit), "failed": failed, "problems": problems}


FAILED = "regrade/failed_graders"  # key of the ledger that failures are charged to here


def summarise(groups: Sequence[RegradedGroup], limit: int = 10) -> dict[str, Any]:
    """Return the changes from the old to the new grades of groups, as in `regrade`."""
    names = dict.fromkeys(
        n
        for g in groups
        for n in (*g.old, *g.new, *sorted(g.asked))
        if n != TRAINED
    )
    signs = [(_find_signs(g.old[TRAINED]), _find_signs(g.new[TRAINED])) for g in groups]
    both = [
        (a[k], b[k])
        for a, b in signs
        for k in [~np.isnan(a) & ~np.isnan(b)]
    ]
    a, b = (
        np.concatenate([pair[i] for pair in both] or [np.zeros(0)])
        for i in (0, 1)
    )
    mixed = [(_is_mixed(g.old[TRAINED]), _is_mixed(g.new[TRAINED])) for g in groups]
    graded = [(not np.isnan(g.old[TRAINED]).all(), not np.isnan(g.new[TRAINED]).all()) for g in groups]
    place_of = [{"step": g.step, "group": g.key} for g in groups]
    changes = sorted(_list_changes(groups), key=lambda c: -c[0])
    return {
        "groups": len(groups),
        "episodes": sum(len(g.texts) for g in groups),
        "rewards": {name: _compare(groups, name) for name in names},
        "reward": _compare(groups, TRAINED),
        "advantage": {
            "compared": len(a),
            "other_sign": int((a * b < 0).sum()),
            "gained": int(((a == 0) & (b != 0)).sum()),
            "lost": int(((a != 0) & (b == 0)).sum()),
        },
        "mixed": {
            "old": sum(m for m, _ in mixed),
            "new": sum(m for _, m in mixed),
        },
        "to_mixed": [p for p, (m, now) in zip(place_of, mixed, strict=True) if now and not m],
        "to_alike": [p for p, (m, now), g in zip(place_of, mixed, graded, strict=True) if m and not now and g[1]],
        "to_ungraded": [p for p, (had, has) in zip(place_of, graded, strict=True) if had and not has],
        "changes": [told for _, told in changes[:limit]],
        "changed": len(changes),
    }


# ---------------------------------------------------------------- asking


def read_reward(text: str) -> tuple[str, str]:
    """Return (name, use) of `NAME=USE` or `USE`."""
    name, eq, use = text.partition("=")
    use = use if eq else text
    name = name if eq else use.rpartition(":" if ":" in use else ".")[2]
    if not name or not use or name in ("weights", "beside"):
        raise ValueError(f"{text!r} names no grader: expected rewards.py:function, or name=rewards.py:function")
    return name, use


def _find_asked(before: Recipe, after: Recipe, stage: Components, named: Iterable[str]) -> list[str]:
    """Return the graders of a stage that are named, have changed settings, or read what one of these gives."""
    old, new = (find_stage(r.stages, stage.name).get("reward", {}) for r in (before, after))
    asked, given = list[str](), set[str]()
    for name, reward in stage.rewards.items():
        reads = {r.removeprefix("reward/") for r in declares(reward).reads}
        if name in {*named} or new[name] != old.get(name) or reads & given:
            asked.append(name)
            given |= _list_names(name, reward)
    return asked


def _describe_use(recipe: Recipe, stage: str, name: str) -> str:
    return str(find_stage(recipe.stages, stage)["reward"][name].get("use", name))


def _enter(ctx: Context, stage: Components, asked: Iterable[str]) -> None:
    """Set a context to a stage with some of its graders."""
    ctx.name, ctx.task, ctx.weights, ctx.sampling = stage.name, stage.task, stage.weights, stage.sampling
    ctx.rewards = {name: stage.rewards[name] for name in asked}


def _grade(
    kept: Sequence[Mapping[str, Any]], step: int, old: Components, new: Components, asked: Sequence[str], ctx: Context
) -> list[RegradedGroup]:
    """Regrade the stored groups of a step with the graders `asked`."""
    names = {n for name in asked
             for stage in (old, new) if name in stage.rewards
             for n in _list_names(name, stage.rewards[name])}  # fmt: skip
    bare = [
        [_strip(t, names, asked) for t in group["trajectories"]]
        for group in kept
    ]
    with ctx.phase("regrade", step), ctx.charging_to("regrade"):
        graded = ctx.wait(run_together(grade_group(group, ctx) for group in bare)) if asked else bare
    weights = [
        {name: ctx.at(w) for name, w in stage.weights.items()}
        for stage in (old, new)
    ]
    out = []
    for group, now in zip(kept, graded, strict=True):
        was = group["trajectories"]
        texts = [
            describe_steps([t.steps[i] for i in p])
            for t in was
            for p in t.paths()
        ]
        before, after = (_read_grades(ts, w) for ts, w in zip((was, now), weights, strict=True))
        out.append(RegradedGroup(step, str(group["group"]), texts, before, after, frozenset(names)))
    return out


def _list_names(name: str, reward: Any) -> set[str]:
    """Return the names of the grades that a grader gives."""
    said = [s.removeprefix("reward/") for s in declares(reward).stamps or () if s.startswith("reward/")]
    return {n for n in said if n != "*"} or {name}


def _strip(t: Trajectory, names: set[str], asked: Sequence[str]) -> Trajectory:
    """Return a trajectory without the grades that will be given again; the task's own stay."""
    steps = tuple(
        copy_with(s, reward={k: v for k, v in s.reward.items() if k not in names})
        for s in t.steps
    )
    by = {"": (), **{k: v for k, v in t.graded_by.items() if k not in asked}}
    return copy_with(t, steps=steps, graded_by=by)


def _read_grades(group: Iterable[Trajectory], weights: Mapping[str, float]) -> dict[str, Array]:
    """Return reward name -> [E], including the trained one; NaN if ungraded."""
    group = list(group)
    paths = [
        [t.steps[i] for i in path]
        for t in group
        for path in t.paths()
    ]
    names = dict.fromkeys(
        n
        for t in group
        for s in t.steps
        for n in s.reward
    )
    out = {
        name: np.array([sum_reward(steps, name) for steps in paths])
        for name in names
    }
    return {
        **out,
        TRAINED: np.array([
            x
            for t in group
            for x in find_outcomes(t, weights)
        ]),
    }


# ---------------------------------------------------------------- comparing


def _compare(groups: Sequence[RegradedGroup], name: str) -> dict[str, Any]:
    """Compare a reward before and after."""
    pairs = [(g.old.get(name), g.new.get(name), len(g.texts)) for g in groups]
    old, new = (
        np.concatenate([
            np.full(n, np.nan) if x is None else x
            for *both, n in pairs
            for x in [both[i]]
        ])
        for i in (0, 1)
    )
    given = [
        any(pair[i] is not None for pair in pairs)
        for i in (0, 1)
    ]
    was, now = ~np.isnan(old), ~np.isnan(new)
    return {
        "old": _describe(old) if given[0] else None,
        "new": _describe(new) if given[1] or any(name in g.asked for g in groups) else None,
        "changed": int((was & now & (np.abs(new - old) > ALIKE)).sum()),
        "lost": int((was & ~now).sum()),
        "gained": int((~was & now).sum()),
    }


def _describe(x: Array) -> dict[str, Any]:
    known = x[~np.isnan(x)]
    return {"mean": finite(known.mean()) if len(known) else None, "graded": len(known), "ungraded": len(x) - len(known)}


def _find_signs(outcome: Array) -> Array:
    """Return [E] -1, 0 or 1: the sign of an outcome minus the mean of its group; NaN if ungraded."""
    known = outcome[~np.isnan(outcome)]
    away = outcome - (known.mean() if len(known) else np.nan)
    return np.where(np.abs(away) <= ALIKE, 0.0, np.sign(away))


def _is_mixed(outcome: Array) -> bool:
    """Whether graded outcomes of a group differ, so that its advantages are not all 0."""
    known = outcome[~np.isnan(outcome)]
    return bool(len(known) > 1 and known.max() - known.min() > ALIKE)


def _list_changes(groups: Iterable[RegradedGroup]) -> Iterable[tuple[float, dict[str, Any]]]:
    """Yield (size, change) for every episode with other grades, in the trained reward or in one that existed before.
    The size is that of the trained reward's change, otherwise the largest of the others; 0 if a grade came or went."""
    for g in groups:
        none = np.full(len(g.texts), np.nan)
        for i, text in enumerate(g.texts):
            pairs = {n: (g.old.get(n, none)[i], g.new.get(n, none)[i]) for n in (TRAINED, *sorted(g.asked))}
            if all(_are_same(a, b) for n, (a, b) in pairs.items() if n in g.old):
                continue
            (old, new), *_ = pairs.values()
            sizes = [abs(b - a) for a, b in pairs.values() if not math.isnan(b - a)]
            size = float(abs(new - old)) if abs(new - old) > ALIKE else float(max(sizes, default=0.0))
            told = {"step": g.step, "group": g.key, "episode": i, "old": finite(old), "new": finite(new)}
            named = {n: [finite(a), finite(b)] for n, (a, b) in pairs.items() if n != TRAINED}
            yield size, {**told, "rewards": named, "text": text}


def _are_same(a: float, b: float) -> bool:
    return abs(a - b) <= ALIKE or (math.isnan(a) and math.isnan(b))

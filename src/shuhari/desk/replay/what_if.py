"""Repeats the update of a stored step under other settings, beside the update as configured.

Both start from the same weights and memory, with the same batch and random streams, so that only the settings differ.
Left out: the effect of those settings on later batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shuhari.config.overlay import RecipeError, split_path
from shuhari.desk.handed import without_functions
from shuhari.desk.replay.steps import (
    change_recipe,
    choose_steps,
    describe_steps,
    find_state,
    finite,
    list_keys,
    of_stage,
)
from shuhari.desk.replay.update import UpdateResult, find_start, make_update, open_at
from shuhari.loop.opening import read_recipe
from shuhari.store import Run as Stored
from shuhari.store import resolve

TAKEN = ("collect", "transform", "part", "learner", "micro_batch")  # sections that an update depends on
CLOSE = 1e-3  # relative difference above which a repeated update counts as different


def what_if(run: str, sets: Sequence[str] = ()) -> dict[str, Any]:
    """Repeat the update of a step, `RUN@STEP`, from its stored groups: as the run is configured, and with settings
    `a.b.c=value` of [collect], [transform], [part], [learner], `reward.weights`. Returns plain values:

    `run`, `step`, `stage`, `settings`;

    `batch`: {groups, of, whole, episodes, rounds}: number of stored groups, and of groups that the step had (estimated
    by its episodes if the run does not store all; None: unknown);

    `weights`: {step, between}: the checkpoint that both start from (0: the initial weights), and the number of updates
    between it and this one;

    `configured`, `changed` (None without settings): {numbers: name -> as in a step's report; advantage: {mean, std,
    min, max, decisions}; after: {kl, ratio_min, ratio_max, gap}: k3 between the policies before and after, the ratio of
    the policy after to the sampling policy, the mean distance between the log-probability before and the stored one;
    left: groups that no buffer wanted};

    `reported`: name -> the run's own report of these numbers;

    `cosine`: part -> {gradient, moved}: between both sides' gradients, summed over the optimiser steps, and between
    their changes of the parameters; None if one is 0;

    `groups`: {group, problem, why, episodes: {text, reward: [configured, changed], advantage: [configured, changed]}};

    `notes`: caveats.

    Raises ValueError if the batch or the weights are not stored, or rows come from elsewhere; RecipeError for an
    unknown setting, or one that no update depends on.
    """
    name, at, step_text = run.rpartition("@")
    if not at or not step_text.isdecimal():
        raise ValueError(f"{run!r}: expected RUN@STEP, such as latest@20")
    path, step = resolve(name), int(step_text)
    stored = Stored(path)
    columns, before = stored.metrics(), read_recipe(path)
    after, settings = change_recipe(before, sets)
    for key in list_keys(settings):
        _check_taken(key)
    state = find_state(columns, step)
    choose_steps(stored, step, step, state.stage)
    kept = stored.rollouts(step)
    line = list(columns["step"]).index(step)
    report = {n: x[line] for n, x in columns.items() if isinstance(x[line], int | float)}
    batch = _describe_batch(kept, report)
    start = find_start(stored, state)
    rounds, exact = batch["rounds"] if batch["whole"] else 1, batch["whole"] and start == step - 1
    with without_functions(before):
        with open_at(path, before, state, start) as (opened, kinds, _):
            old = make_update(opened, kept, rounds, exact=exact)
        new, forgotten = None, list[str]()
        if settings:
            with open_at(path, after, state, start, kinds) as (opened, _, forgotten):
                new = make_update(opened, kept, rounds, exact=exact)
    reported = {n: report[n] for n in old.numbers if n in report}
    weights = {"step": start, "between": step - 1 - start}
    return {
        "run": str(path),
        "step": step,
        "stage": state.stage,
        "settings": settings,
        "batch": batch,
        "weights": weights,
        "configured": _describe(old),
        "changed": None if new is None else _describe(new),
        "reported": reported,
        "cosine": {} if new is None else _list_cosines(old, new),
        "groups": [_describe_group(g, i, old, new) for i, g in enumerate(kept)],
        "notes": [
            *_note_source(batch, start, step),
            *_note_sides(old, new, forgotten),
            *(_note_reported(old, reported) if exact else ()),
        ],
    }


def _check_taken(key: str) -> None:
    """Raises RecipeError for a setting that no update of a stored batch depends on."""
    path = of_stage(split_path(key))
    if path[0] == "reward" and len(path) > 1 and path[1] not in ("weights", "beside"):
        raise RecipeError(key, "the stored batch is graded already: `shuhari regrade` applies another grader")
    if path[0] == "models":
        raise RecipeError(key, "the models come from the checkpoint, and cannot be changed here")
    if path[0] not in (*TAKEN, "reward") or (path[0] == "learner" and "buffer" in path):
        expected = f"expected a setting of {', '.join(TAKEN)} or reward.weights"
        raise RecipeError(
            key, f"it affects how a batch is made or reported, and the batch is stored; {expected}"
        )


def _describe_batch(kept: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> dict[str, Any]:
    episodes = [
        sum(len(t.paths()) for t in g["trajectories"])
        for g in kept
    ]
    whole, rounds = all(g.get("why") == "all" for g in kept), round(report.get("rollout/rounds", 1))
    all_of_them = report.get("rollout/episodes", 0) * rounds
    of = len(kept) if whole else round(all_of_them * len(kept) / sum(episodes)) if all_of_them else None
    return {"groups": len(kept), "of": of, "whole": whole, "episodes": sum(episodes), "rounds": rounds}


def _describe(result: UpdateResult) -> dict[str, Any]:
    a = result.advantages.double()
    advantage = {"mean": a.mean(), "std": a.std(correction=0), "min": a.min(), "max": a.max()} if len(a) else {}
    return {
        "numbers": {n: finite(x) for n, x in result.numbers.items()},
        "advantage": {**{n: finite(float(x)) for n, x in advantage.items()}, "decisions": len(a)},
        "after": {n: finite(x) for n, x in result.after.items()},
        "left": result.left,
    }


def _describe_group(group: Mapping[str, Any], i: int, old: UpdateResult, new: UpdateResult | None) -> dict[str, Any]:
    sides = [old] if new is None else [old, new]
    episodes = [
        {
            "text": describe_steps(t.steps),
            "reward": [finite(side.rewards[i][j]) for side in sides],
            "advantage": [finite(side.credit[i][j]) for side in sides],
        }
        for j, t in enumerate(group["trajectories"])
    ]
    problem = group["trajectories"][0].request.problem.id
    return {"group": str(group["group"]), "problem": problem, "why": group.get("why", ""), "episodes": episodes}


def _list_cosines(old: UpdateResult, new: UpdateResult) -> dict[str, Any]:
    """Return the cosines of each part that both have."""
    return {
        part: {
            "gradient": _cosine(old.gradient[part], new.gradient[part]),
            "moved": _cosine(old.moved[part], new.moved[part]),
        }
        for part in old.gradient
        if part in new.gradient and len(old.gradient[part]) == len(new.gradient[part])
    }


def _cosine(a: Tensor, b: Tensor) -> float | None:
    size = float(a.double().norm() * b.double().norm())
    return finite(float(a.double() @ b.double()) / size) if size else None


# ---------------------------------------------------------------- notes


def _note_source(batch: Mapping[str, Any], start: int, step: int) -> list[str]:
    """Return notes if the batch or the weights are not exactly those of the step."""
    out = []
    if not batch["whole"]:
        of = "an unknown number of" if batch["of"] is None else batch["of"]
        whole = "[store] groups = ['all'] keeps all of them"
        out.append(f"the batch is {batch['groups']} of {of} groups of the step, not drawn at random: {whole}")
    if between := step - 1 - start:
        where = f"the checkpoint of step {start}" if start else "what the run began with"
        out.append(
            f"the nearest weights are {where}, {between} updates before: neither they nor what optimisers remember are "
            "of this step; the stored log-probabilities are of the policy that sampled"
        )
    return out


def _note_sides(old: UpdateResult, new: UpdateResult | None, forgotten: Sequence[str]) -> list[str]:
    """Return notes on what the sides leave out, and on whether they differ at all."""
    out = [f"{at} is another component with the settings, and begins without memory" for at in forgotten]
    if old.left:
        out.append(f"{old.left} groups were wanted by no buffer, and are left out")
    if new is not None and new.left != old.left:
        out.append(f"with the settings {new.left} groups are wanted by no buffer, and are left out")
    if new is not None and _are_same(old.moved, new.moved):
        clipped = any(x for name, x in old.numbers.items() if name.endswith("/clip_fraction"))
        why = "what is clipped is clipped under both" if clipped else "where every ratio is 1 nothing is clipped"
        out.append(f"the weights move alike under both: the settings do not change these gradients ({why})")
    return out


def _are_same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[part], b[part]) for part in a)


def _note_reported(old: UpdateResult, reported: Mapping[str, float]) -> list[str]:
    """Return a note if an update that should equal the run's own does not."""
    for name, x in reported.items():
        mine = old.numbers[name]
        if abs(mine - x) > CLOSE * max(abs(x), 1e-2):
            told = f"made again, {name} is {mine:.4g}, and the run reported {x:.4g}"
            return [f"{told}: it was made on another machine, or with other code"]
    return []

"""What a run would be refused for, or suffer from, known from its recipe and data before anything is loaded or played:
for a dry run, and for a run before its first step.

Left out: what the run itself checks as it starts (`loop.fitting`, `loop.tuned`), and mistakes in the recipe alone
(`loop.checks`).
"""

from __future__ import annotations

import logging
import math
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import gymnasium

from shuhari.config.overlay import RecipeError, format_path, look_up, walk_leaves
from shuhari.desk.plain import format_value
from shuhari.kernel.rates import find_usual
from shuhari.kernel.registry import GIVEN
from shuhari.loop.tuned import find_highest
from shuhari.ports import ability, is_vector
from shuhari.ports.declares import declares
from shuhari.store.schema import FILE

if TYPE_CHECKING:
    from shuhari.config.recipe import Recipe
    from shuhari.config.stage import Components

TUNED, TRAINED = "reproduce", "pretrained"  # families: settings tuned for one environment; for trained models
HIGH = 1.5  # times the usual rate of all weights, from where on one that comes from adapters is named
PROBED, PATIENCE = 10_000, 1.0  # steps, and seconds, in which an episode by chance should end
ROWS = 100_000  # of a file, whose pairs are looked at
PREFERENCES = "preferences"  # the buffer of them
LIMITS = ("max_episode_steps", "max_num_frames_per_episode")  # arguments that bound an episode, the latter the ALE's
USUAL = {  # ends of the paths of settings that depend on the environment -> what most have; None: nothing
    ("gamma",): 0.99, ("weights", "task"): 1.0, ("bins", "low"): None, ("bins", "high"): None,
    ("policy", "target"): None, ("policy", "scale"): 1.0, ("policy", "longest"): 1000,  # of a Decision Transformer
}  # fmt: skip
_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)  # of a model on the hub, which may be there


def list_refusals(
    recipe: Recipe, stages: Sequence[Components], models: Mapping[str, Any] | None = None
) -> list[str]:
    """Return why a run would be refused anywhere: no file at a model's `path`, rows without what is learned from, a
    replay smaller than what is collected at once, rows that are too long. models: role -> model, to measure rows with;
    None does not."""
    found = dict.fromkeys([*_list_missing(stages), *_list_unpaired(recipe, stages), *_list_crowded(recipe, stages)])
    for stage in stages if models else ():
        from shuhari.loop.fitting import TooLongError, fit_rows

        try:
            fit_rows(stage, SimpleNamespace(models=models, told=None), stages)  # type: ignore[arg-type]
        except TooLongError as error:
            found[str(error)] = None
    return list(found)


def foresee(recipe: Recipe, path: Path) -> list[str]:
    """Return `list_advice` of a run that is not there yet. Raises RecipeError for a mistake in the recipe, and for the
    first of `list_refusals` and `list_devices`. A recipe that none of them may concern is not built."""
    from shuhari.loop.checks import make_stages

    if (path / FILE).exists() or "study" in recipe.tree or not _may_concern(recipe):
        return []
    try:
        stages = make_stages(recipe)
    except RecipeError as error:
        raise point_to_trained(error, recipe) from error
    for problem in (*list_refusals(recipe, stages), *list_devices(stages)):
        raise RecipeError("", problem)
    return list_advice(recipe, stages)


def warn_foreseen(recipe: Recipe, path: Path) -> None:
    """Log what `foresee` returns."""
    for problem in foresee(recipe, path):
        logging.getLogger("shuhari").warning("%s", problem)


def _may_concern(recipe: Recipe) -> bool:
    """Whether a recipe has an environment of Gymnasium, a trained model, preferences, or a reward that its own weights
    may not name."""
    if any(_find_unnamed(table) for table in recipe.stages):
        return True
    texts = {
        (path[-1], str(value))
        for path, value in walk_leaves(recipe.tree)
    }
    return any(
        (key == "name" and text.startswith("gym")) or key == "path" or (key, text) == ("use", PREFERENCES)
        for key, text in texts
    )


def list_advice(recipe: Recipe, stages: Sequence[Components]) -> list[str]:
    """Return what a run may suffer from: rewards without a weight, a budget that the warm-up spends, episodes without
    an end, a rate of adapters for all weights, settings of another environment."""
    return [
        *_list_unweighted(recipe, stages),
        *_list_idle(recipe, stages),
        *_list_endless(recipe, stages),
        *_list_adapter_rates(recipe, stages),
        *_list_tuned(recipe, stages),
    ]


def point_to_trained(error: RecipeError, recipe: Recipe) -> RecipeError:
    """Return an error about a recipe for random weights that is given a trained model, with the recipe for such models;
    any other error as it is."""
    from shuhari.config.named import NAMES, SCRATCH
    from shuhari.config.named import TRAINED as KIND

    if not any(path[0] == "models" and path[-1] == "path" for path, _ in walk_leaves(recipe.tree)):
        return error
    meant = next((of[KIND] for of in NAMES.values() if of.get(SCRATCH) == recipe.name and KIND in of), "")
    if not meant:
        return error
    there = f"a trained model (models.policy.path) has {meant.replace(' --with', ', with --with')}"
    return RecipeError(error.where, f"{error.problem}. {recipe.name} is for random weights: {there}")


# ------------------------------------------------------------------------------------------------ files and devices


def _walk_models(stages: Sequence[Components]) -> Iterator[tuple[str, Any]]:
    """Yield (role, model) of all stages."""
    for stage in stages:
        for name, role in stage.models.items():
            if role.model is not None:
                yield name, role.model


def _list_missing(stages: Sequence[Components]) -> Iterator[str]:
    from shuhari.models.text.hub import fetch

    for role, model in _walk_models(stages):
        path = ability(model, "path")
        if not path or _ID.fullmatch(str(path)) or Path(path).expanduser().exists():
            continue
        try:
            fetch(str(path), Path(path).expanduser())
        except FileNotFoundError as error:
            yield f"models.{role}.path: {error}"


def list_devices(stages: Sequence[Components]) -> Iterator[str]:
    """Yield why a run would be refused on this machine: a model's device that is not there."""
    from shuhari.models.devices import find_device

    for role, model in _walk_models(stages):
        try:
            find_device(str(ability(model, "device") or "cpu"))
        except ValueError as error:
            yield f"models.{role}.device: {error}"


# ------------------------------------------------------------------------------------------------ rows


def _list_unpaired(recipe: Recipe, stages: Sequence[Components]) -> Iterator[str]:
    """Yield, for each stage that learns from preferences in a file, the first row of it that has no pair and no
    label."""
    for table, stage in zip(recipe.stages, stages, strict=True):
        if not name_task(table).startswith("file/") or PREFERENCES not in _list_uses(table):
            continue
        task: Any = stage.task
        rows = islice(task.problems(ability(stage.curriculum, "split") or "train").problems, ROWS)
        bad = next((row for row in rows if not _has_preference(row)), None)
        if bad is not None:
            yield (
                f"buffer: file/{task.path}, {task.places[bad.id]}: a row without a preference: expected "
                "`chosen` and `rejected`, or a `completion` with a boolean `label`, in every row "
                f"(columns: {', '.join(task.raw_columns)})"
            )


def name_task(table: Mapping[str, Any]) -> str:
    """Return the name of the task of a table, "" if it has none; `gym/world/...` of an environment that a program
    passed."""
    task = table.get("task", {})
    name = str(task.get("name", ""))
    return f"{name}/{task['path']}" if name == "gym" and "path" in task else name


def _list_uses(table: Mapping[str, Any]) -> set[str]:
    """Return the names of all components of a stage's table."""
    return {str(value) for path, value in walk_leaves(table) if path[-1] == "use"}


def _has_preference(row: Any) -> bool:
    pair = row.info.get("chosen") is not None and row.info.get("rejected") is not None
    return pair or (row.solution is not None and row.info.get("label") is not None)


def _find_unnamed(table: Mapping[str, Any]) -> list[str]:
    """Return the rewards of a stage whose keys its own weights do not name."""
    given = table.get("reward", {})
    named = {"weights", "beside", *given.get("weights", {}), *given.get("beside", {})}
    return [key for key in given if key not in named] if given.get("weights") else []


def _list_unweighted(recipe: Recipe, stages: Sequence[Components]) -> Iterator[str]:
    """Yield the rewards that a recipe's own weights do not name, so that they are reported and not trained."""
    told = set[str]()
    for table, stage in zip(recipe.stages, stages, strict=True):
        weights = table.get("reward", {}).get("weights", {})
        named = {*weights, *table.get("reward", {}).get("beside", {})}
        for key in _find_unnamed(table):
            stamps = declares(stage.rewards[key]).stamps or ()
            grades = {name.partition("/")[2] for name in stamps if name.startswith("reward/")}
            if key in told or not grades or named & grades:
                continue
            told.add(key)
            yield (
                f"reward.{key} is reported and not trained, as reward.weights ({', '.join(weights)}) does not "
                f"name it: --set reward.weights.{min(grades)}=1 trains it, 0 only reports it"
            )


# ------------------------------------------------------------------------------------------------ replays


def _list_crowded(recipe: Recipe, stages: Sequence[Components]) -> Iterator[str]:
    """Yield each setting of a replay that is collected at once, and is more than it holds."""
    for table, stage in zip(recipe.stages, stages, strict=True):
        replay = table.get("buffer", {})
        capacity = replay.get("capacity", stage.defaults.get("buffer.capacity"))
        for name in ("warmup", "collect"):
            if capacity and replay.get(name, 0) > capacity:
                yield (
                    f"buffer.capacity is {capacity:,} and buffer.{name} {replay[name]:,}, which are collected at once: "
                    "expected a capacity above it"
                )


def _list_idle(recipe: Recipe, stages: Sequence[Components]) -> Iterator[str]:
    """Yield each stage whose budget of environment steps is spent before the first update."""
    for table, stage in zip(recipe.stages, stages, strict=True):
        warmup = table.get("buffer", {}).get("warmup", 0)
        if warmup >= stage.budget.get("env_steps", math.inf):
            yield (
                f"buffer.warmup is {warmup:,}, which are collected before the first update, and env_steps "
                f"{stage.budget['env_steps']:,.0f}: nothing is learned"
            )


# ------------------------------------------------------------------------------------------------ environments


def _list_endless(recipe: Recipe, stages: Sequence[Components]) -> Iterator[str]:
    """Yield each environment without a limit of steps that random actions do not bring to an end: held-out episodes are
    played to theirs, so that a run waits for ever."""
    told = set[str]()
    for table, stage in zip(recipe.stages, stages, strict=True):
        if stage.evaluate is None or not stage.evaluate.n or not is_vector(stage.rollout):
            continue
        for owner, task in ((table, stage.task), (table.get("evaluate", {}), stage.evaluate.task)):
            name = name_task(owner)
            if not name.startswith("gym/") or name in told:
                continue
            told.add(name)
            if steps := _play_by_chance(task):
                yield (
                    f"{name}: an episode of random actions has not ended after {steps:,} steps, and held-out "
                    "episodes are played to their end: --set task.kwargs.max_episode_steps=1000 truncates them"
                )


def _play_by_chance(task: Any) -> int:
    """Return the number of random steps after which an episode of an environment has not ended; 0 if it has, or has a
    limit, or cannot be played so."""
    spec = gymnasium.registry.get(task.path)
    if any(task.kwargs.get(name) for name in LIMITS):
        return 0
    if spec is not None and (spec.max_episode_steps or any((spec.kwargs or {}).get(name) for name in LIMITS)):
        return 0
    try:
        env = task.make()
        if env.spec is not None and env.spec.max_episode_steps:
            return 0
        env.action_space.seed(0)
        env.reset(seed=0)
        end, steps = time.monotonic() + PATIENCE, 0
        while steps < PROBED and time.monotonic() < end:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            steps += 1
            if terminated or truncated:
                return 0
        env.close()
    except Exception:  # actions that are masked, or an error of the environment, which the run reports
        return 0
    return steps


def _list_tuned(recipe: Recipe, stages: Sequence[Components]) -> Iterator[str]:
    """Yield the recipes with settings tuned for the environment of a run whose recipe is made for another one, or else
    the settings that it has for that one."""
    from shuhari.config.library import list_names
    from shuhari.config.recipe import load

    task = name_task(recipe.stages[-1])
    base = recipe.name.partition("+")[0]  # methods over it are named behind it
    if base not in list_names() or not base.startswith(("baselines/", f"{TUNED}/")) or not task.startswith("gym/"):
        return
    there = load(base).stages[-1]
    if name_task(there) == task:
        return
    own, new = _shorten_task(name_task(there)), _shorten_task(task)
    if lost := [*_list_lost(recipe.stages[-1]["task"], there["task"])]:
        yield f"{base} has settings of {own}'s task that {new} begins without: {' '.join(lost)} keeps them"
    mine = _name_algorithm(base)
    tuned = [name for name in list_names() if name.startswith(f"{TUNED}/") and _name_algorithm(name) == mine]
    same = [name for name in tuned if name_task(load(name).stages[-1]) == task]
    if same and base not in same:
        yield f"{base} is tuned for another environment; {' and '.join(same)} has settings for {new}"
        return
    here, base_has = dict(walk_leaves(recipe.stages[-1])), dict(walk_leaves(there))
    if kept := [*_list_kept(here, base_has)]:
        yield f"{base} is made for {own}, and what it has may not fit {new}: {', '.join(kept)}"


def _shorten_task(name: str) -> str:
    """Return how the environment of `gym/...` is spoken of."""
    short = name.removeprefix("gym/").removeprefix("world/")
    return "the environment that was passed" if short.startswith(GIVEN) else short


def _list_lost(here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[str]:
    """Yield `--set task.<setting>=<value>` of what the task of a recipe has (wrappers, frames that are stacked) and
    another one, which begins anew, has not."""
    for path, value in walk_leaves(there):
        if path[0] not in here and path != ("name",):
            yield f"--set {shlex.quote(f'task.{format_path(path)}={format_value(value)}')}"


def _list_kept(here: Mapping[Any, Any], there: Mapping[Any, Any]) -> Iterator[str]:
    """Yield `path=value` of settings that depend on the environment, and that a run has as its recipe has them. Left
    out: values that most environments have."""
    for path, value in there.items():
        tail = next((tail for tail in USUAL if path[-len(tail) :] == tail), None)
        if tail is not None and isinstance(value, int | float) and here.get(path) == value != USUAL[tail]:
            yield f"{format_path(path)}={value:g}"


def _name_algorithm(recipe: str) -> str:
    """Return what a recipe's name begins with before its environment: `qr_dqn` of `reproduce/qr_dqn_minatar`."""
    last = recipe.rpartition("/")[2]
    return next((word for word in ("qr_dqn", "dqn", "ppo", "sac", "td3") if last.startswith(f"{word}_")), last)


# ------------------------------------------------------------------------------------------------ rates of adapters


def _list_adapter_rates(recipe: Recipe, stages: Sequence[Components]) -> Iterator[str]:
    """Yield each rate that a recipe with adapters has, where all weights of a trained model are trained."""
    usual = find_usual(adapted=False)
    for table, stage in zip(recipe.stages, stages, strict=True):
        whole = [n for n, model in _walk_models([stage]) if ability(model, "path") and ability(model, "lora") is None]
        for name, part in table.get("part", {}).items():
            key = ("part", name, "optimiser", "lr")
            rate = find_highest(look_up(table, key))
            by = {source for path, source in recipe.sources.items() if path[: len(key)] == key}
            if not set(part.get("trains", [name])) & set(whole) or not all(x.startswith(f"{TRAINED}/") for x in by):
                continue
            if by and rate > HIGH * usual:
                text = format_path(key)
                yield (
                    f"{text} is up to {rate:g}, which {' and '.join(by)} has for adapters, and all weights are trained "
                    f"(no models.*.lora): a tenth is usual, --set {text}={rate / 10:g}"
                )

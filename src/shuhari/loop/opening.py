"""A stored run, opened as it was at one of its checkpoints, for reading. Nothing is stored."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from shuhari.config.build import build_models
from shuhari.config.overlay import format_path, split_path, walk_leaves
from shuhari.config.recipe import Recipe, RecipeError, load
from shuhari.config.repeats import expand_repeats
from shuhari.data import EMPTY
from shuhari.kernel import state
from shuhari.loop.outside import describe_changed, find_outside
from shuhari.loop.resume import restore
from shuhari.loop.roles import cast_roles, load_weights
from shuhari.loop.run import Run, open_run
from shuhari.ports import Task
from shuhari.store import Run as Stored
from shuhari.store import StoreError
from shuhari.store.names import BASED
from shuhari.store.schema import FILE

# what a run that is there may be measured with otherwise than its recipe says
MEASURED = (("evaluate",), ("rollout", "sampling"))


@contextmanager
def open_checkpoint(
    path: Path, step: int | None = None, recipe: Recipe | None = None, *, over: Mapping[str, Any] = EMPTY
) -> Iterator[Run]:
    """Open the run at `path` as of `step` (None: its last checkpoint), for as long as the context lasts; recipe: its
    own, if it has been read already. over: settings of its measurement, dotted key -> value, which override the current
    stage's. The run is one process here, whatever workers and learners it was trained with. Raises StoreError if there
    is no such checkpoint, CheckpointError if it is damaged, RecipeError for a setting of anything else than `MEASURED`.
    """
    recipe = read_recipe(path, recipe)
    tree = Stored(path).load(step)
    if tree is None:
        raise StoreError(f"{path} has no checkpoint yet: train it first")
    index = tree["progress"]["stage"]
    with open_run(lay_measured(recipe, index, over) if over else recipe) as opened:
        warn_of_changes(path, opened)
        if over:  # what remembers something at evaluation may be another component
            stage = opened.progress.stages[index]
            here, at = dict(state.walk({stage.name: stage.list_memories()})), f"{stage.name}/evaluate/"
            kept = {k: x for k, x in tree["components"].items() if k in here or not k.startswith(at)}
            tree = {**tree, "components": kept}
        restore(opened, tree)
        yield opened


def lay_measured(recipe: Recipe, index: int, settings: Mapping[str, Any]) -> Recipe:
    """Return a recipe with settings, of `MEASURED` only, applied to its stage `index`, counted among the stages that
    run."""
    for key, value in settings.items():
        for inner, _ in walk_leaves({"": value}):
            path = (*split_path(key), *inner[1:])
            if not any(path[: len(known)] == known for known in MEASURED):
                message = "expected evaluate.<setting>, or rollout.sampling.<setting> for how it is sampled"
                if path[0] in ("task", "reward"):
                    message += f"; `shuhari eval --{path[0]}` takes another"
                raise RecipeError(format_path(path), f"a stored run is evaluated as it was trained: {message}")
    of = [of for _, of in expand_repeats(recipe.tree.get("stage") or {"": {}})][index]
    place = f"stage.{format_path((of,))}." if of else ""
    return recipe.with_settings({f"{place}{key}": value for key, value in settings.items()})


def open_models(path: Path, step: int | None = None) -> tuple[dict[str, Any], Task]:
    """Return (models by role, the task of the current stage) of the run at `path` as of `step` (None: its last
    checkpoint). Of the code that its recipe names, only tasks and models are loaded: no grader, no tool. Raises as
    `open_checkpoint`."""
    recipe = read_recipe(path)
    tree = Stored(path).load(step)
    if tree is None:
        raise StoreError(f"{path} has no checkpoint yet: train it first")
    tables = recipe.stages[: tree["progress"]["stage"] + 1]
    models, shared, found = dict[str, Any](), set[str](), build_models(tables)
    for task, roles in found:
        cast_roles(roles, models, task, recipe.seed, EMPTY, shared, sources=False)
    load_weights(models, tree["models"], tree.get(BASED, EMPTY))
    made = {str(t["name"]): {"models": {r: role.model for r, role in roles.items() if role.model is not None}}
            for t, (_, roles) in zip(tables, found, strict=True)}  # fmt: skip
    mine = tuple(f"{stage}/models/" for stage in made)
    state.remember(made, {at: x for at, x in tree["components"].items() if at.startswith(mine)})
    _warn(path, find_outside(recipe))
    return models, found[-1][0]


def read_recipe(path: Path, recipe: Recipe | None = None) -> Recipe:
    """Return the recipe of the run at `path`, or `recipe`, if that has been read already, for one process. Raises
    RecipeError for a study."""
    recipe = load(path) if recipe is None else recipe
    if "study" in recipe.tree:
        raise RecipeError("study", _tell_runs(path))
    return replace(recipe, tree={k: v for k, v in recipe.tree.items() if k != "distributed"})


def warn_of_changes(path: Path, opened: Run) -> None:
    """Log which files of data or code differ from those that the run at `path` was made with."""
    _warn(path, find_outside(opened.recipe, opened.progress.stages))


def _warn(path: Path, outside: Mapping[str, Path]) -> None:
    used = ", and what is there now is used"
    if changed := describe_changed(Stored(path).get("outside") or {}, outside, used):
        logging.getLogger("shuhari").warning("%s: %s", path, changed)


def _tell_runs(path: Path) -> str:
    """Return the message that a study has runs instead of a policy."""
    names = sorted(p.parent.name for p in (path / "children").glob(f"*/{FILE}"))
    if not names:
        return f"{path} is a study, and no run was trained in it: it has numbers (`shuhari show {path}`) and no policy"
    more = f" (or {', '.join(names[1:4])}{', ...' if names[4:] else ''})" if names[1:] else ""
    return f"{path} is a study of several runs: open one of them, {path}/children/{names[0]}{more}"

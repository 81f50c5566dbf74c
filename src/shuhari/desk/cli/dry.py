"""`train --dry-run`: the sizes of a step, and every value of the resolved recipe with its source, stage by stage: first
the changes by methods or the file itself, then the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeAlias

from shuhari.data import EMPTY
from shuhari.desk.cli.text import note, say
from shuhari.desk.plain import format_value
from shuhari.ports.hooks import ability

if TYPE_CHECKING:
    from pathlib import Path as Run

    from shuhari.config.overlay import Path
    from shuhari.config.recipe import Recipe
    from shuhari.config.stage import Components

Row: TypeAlias = tuple[str, str]  # `key = value`, and its source
DEFAULT = "default"
GIVEN = ("--set", "set")  # sources that a command adds to a recipe
LIGHT = 2e9  # bytes of weights that a dry run loads to measure rows
MANY = 1_000_000  # rows of a step that hardly any machine can hold


def dry_run(recipe: Recipe, path: Run, *, explain: bool = False) -> list[str]:
    """Print the recipe and build its components once, so that mistakes show. Returns what a run would be refused for.
    `path`: where the run would be, for the disk space of its checkpoints. explain: with the sentence of each setting.
    """
    from shuhari.desk.amounts import describe_work

    study = None
    if "study" in recipe.tree:
        from shuhari.loop.study import make_study, trains_runs

        study = make_study(recipe)
        if not trains_runs(study):
            _show_simulation(recipe)
            return []
    stages = _make(recipe)
    models = _try_models(recipe, stages)
    say(f"# {recipe.name}")
    if study is not None:
        say(f"# study: {_describe_study(recipe)} Each run, but for what the study sets:")
    for stage in stages:
        budget = ", ".join(f"{v:g} {k}" for k, v in stage.budget.items())
        say(f"# {stage.name}: {budget}; {describe_work(stage)}")
        buffers = [x.buffer for x in stage.learners.values() if ability(x.buffer, "unit") != "group"]
        first = max((buffer.wanted() for buffer in buffers), default=0)
        for unit in ("env_steps", "decisions"):
            if first > stage.budget.get(unit, first):
                note(f"{stage.name}: its first step alone collects {first:,} decisions: expected a budget of as many "
                     f"{unit}, or a smaller warm-up or buffer")  # fmt: skip
        for learner in stage.learners.values():
            rows_wanted = (ability(learner.buffer, "size") or 0) * stage.n
            if ability(learner.buffer, "unit") == "group" and rows_wanted > MANY:
                note(f"{stage.name}: {rows_wanted:,} rows a step: expected memory for all of them at once "
                     "(rollout.n, buffer.size)")  # fmt: skip
    if study is None:
        _show_room(stages, models, path)
    for heading, rows in list_values(recipe, {x.name: x.defaults for x in stages}, _list_defaults(recipe)).items():
        say(f"\n## {heading}")
        _show_rows(rows, [dict(table) for table in recipe.stages] if explain else ())
    return _warn(recipe, stages, models) if study is None else []


def _make(recipe: Recipe) -> list[Components]:
    from shuhari.config.overlay import RecipeError
    from shuhari.desk.foreseen import point_to_trained
    from shuhari.loop.checks import make_stages

    try:
        return make_stages(recipe)
    except RecipeError as error:
        raise point_to_trained(error, recipe) from error


def _warn(recipe: Recipe, stages: Sequence[Components], models: Mapping[str, Any]) -> list[str]:
    """Print, below everything else, what the run would print before its first step: values that do not fit, and why it
    would be refused, which is returned."""
    from shuhari.config.overlay import RecipeError
    from shuhari.desk.foreseen import list_advice, list_devices, list_refusals
    from shuhari.loop.fitting import list_repeated
    from shuhari.loop.tuned import list_slow, list_unfit, refuse_inherited_rates

    refused = list_refusals(recipe, stages, models or _read_light(recipe, stages))
    try:
        refuse_inherited_rates(recipe, stages)
    except RecipeError as error:
        refused.append(str(error))
    repeated = chain.from_iterable(map(list_repeated, stages))
    for problem in (*list_unfit(recipe, stages), *list_slow(recipe), *repeated, *list_advice(recipe, stages)):
        note(problem)
    for problem in list_devices(stages):  # the run may be meant for another machine
        note(f"a run on this machine would be refused: {problem}")
    return refused


def _show_room(stages: Sequence[Components], models: Mapping[str, Any], path: Run) -> None:
    """Print the disk space of checkpoints, if the sizes of all models are known."""
    from shuhari.loop.space import find_room, measure_model, read_size

    sizes = {name: measure_model(model, None) for name, model in models.items()}
    for stage in stages if not models else ():
        for name, role in stage.models.items():
            size = None if role.model is None or role.source else read_size(role.model)
            sizes |= {} if size is None else {name: size}
    roles = [
        item
        for stage in stages
        for item in stage.models.items()
    ]
    if sizes and all(name in sizes or role.init or role.same_as for name, role in roles):
        say(f"# {find_room(stages, sizes, path)}")


def _show_rows(rows: Sequence[Row], tables: Sequence[Mapping[str, Any]] = ()) -> None:
    """Print rows, each with the sentence of its setting below it if there are the tables of the stages."""
    width = min(72, max((len(text) for text, _ in rows), default=0))
    for text, source in rows:
        say(f"{text:<{width}}  # {source}")
        if told := _explain(text.partition(" = ")[0], tables):
            say(fill(told, 100, initial_indent="    # ", subsequent_indent="    # "))


def _explain(key: str, tables: Sequence[Mapping[str, Any]]) -> str:
    """The sentence of a setting of the first stage that has one."""
    from shuhari.config.overlay import split_path
    from shuhari.desk.sentences import find_sentence

    path = split_path(key) if tables else ()
    return next((told for table in tables if (told := find_sentence(table, path))), "")


def _show_simulation(recipe: Recipe) -> None:
    """Print a study that trains no run: its description and the settings that it reads."""
    from shuhari.loop.study import OWN

    shown = (*OWN, "alone", "paper", "claim")
    say(f"# {recipe.name}")
    say(f"# study: {_describe_study(recipe)} No run is trained, so nothing else of the recipe is read.")
    say()
    read = {key: value for key, value in recipe.tree.items() if key in shown}
    _show_rows(_list_rows(read, lambda path: recipe.sources.get(path, DEFAULT), _list_defaults(recipe)))


def _describe_study(recipe: Recipe) -> str:
    from shuhari.desk.components import summarise

    use = str(recipe.tree["study"].get("use"))
    try:
        return f"{use}: {summarise('study', use)['summary']}"
    except LookupError:
        return f"{use}."


def _list_defaults(recipe: Recipe) -> Mapping[str, Any]:
    """Return key -> value of the default settings of a study."""
    from shuhari.config.settings import Settings

    study = Settings()
    if "study" in recipe.tree:
        study.make_component("study", recipe.tree["study"], "study")
    return study.defaults


def list_nested(recipe: Recipe) -> list[str]:
    """Return a line for each place that several methods wrap: their components are nested, which may not be
    intended."""
    from shuhari.config.overlay import RecipeError
    from shuhari.config.recipe import read_method

    wrapped: dict[str, list[str]] = {}
    for name in recipe.tree.get("laid", {}):
        try:
            table = read_method(name).table
        except RecipeError:  # the file is not available
            continue
        for key, one in table.items():
            if isinstance(one, Mapping) and "wraps" in one:
                wrapped.setdefault(key, []).append(f"{one['use']!r} of {name}")
    return [
        f"{key}: {' stands within '.join(who)}, in the order of --with: look whether both are "
        "meant, or lay one of them" for key, who in wrapped.items() if len(who) > 1
    ]  # fmt: skip


def _try_models(recipe: Recipe, stages: Sequence[Components]) -> dict[str, Any]:
    """Make the models of every stage, so that one that does not fit its task shows; empty if weights are read from
    files, which takes time and memory. Raises RecipeError."""
    from shuhari.config.overlay import RecipeError, walk_leaves
    from shuhari.loop.roles import cast_roles

    models: dict[str, Any] = {}
    if any(path[0] == "models" and path[-1] in ("path", "from") for path, _ in walk_leaves(recipe.tree)):
        return {}
    shared: set[str] = set()
    for stage in stages:
        try:
            cast_roles(stage.models, models, stage.task, recipe.seed, {}, shared, sources=False)
        except (KeyError, ValueError, TypeError) as error:
            message = error.args[0] if isinstance(error, KeyError) and error.args else error
            raise RecipeError("models", f"stage {stage.name!r}: {message}") from error
    return models


def _read_light(recipe: Recipe, stages: Sequence[Components]) -> dict[str, Any]:
    """Load the models that read the rows of a file, so that these can be measured; none if their weights are large, or
    cannot be read, which is reported elsewhere."""
    from shuhari.desk.foreseen import name_task
    from shuhari.loop.roles import cast_roles
    from shuhari.loop.space import read_size

    models: dict[str, Any] = {}
    shared: set[str] = set()
    for table, stage in zip(recipe.stages, stages, strict=True):
        read = [role.model for role in stage.models.values() if role.model is not None and not role.source]
        sizes = [read_size(model) for model in read if ability(model, "path")]
        if not name_task(table).startswith("file/") or not all(sizes):
            return {}
        if sum(size.lent for size in sizes if size is not None) > LIGHT:
            return {}
        try:
            cast_roles(stage.models, models, stage.task, recipe.seed, {}, shared, sources=False)
        except (KeyError, ValueError, TypeError, RuntimeError, OSError):
            return {}
    return models


def list_values(
    recipe: Recipe, defaults: Mapping[str, Mapping[str, Any]], of_study: Mapping[str, Any] = EMPTY
) -> dict[str, list[Row]]:
    """Return heading -> (`key = value`, source) of all values, set or default: of the run, then of each stage, changes
    before the rest. `defaults`: stage -> dotted key -> value. Identical repetitions of a stage are listed once."""
    from shuhari.config.overlay import BUDGETS, SCALARS, WHOLE
    from shuhari.desk.origins import find_origin

    of_run = {*SCALARS, *WHOLE, "claim"} - {*BUDGETS, "micro_batch", "stop_when"}
    shared = next(iter(defaults.values()), EMPTY)
    spread = {k: v for k, v in shared.items() if k.partition(".")[0] in of_run}
    whole = {k: v for k, v in recipe.tree.items() if k in of_run}
    out = _split("the run", recipe, _list_rows(whole, lambda p: recipe.sources.get(p, DEFAULT), {**spread, **of_study}))
    last: tuple[str, Any] = "", None
    for stage in recipe.stages:
        table, name = {k: v for k, v in stage.items() if k not in of_run}, str(stage["name"])
        if table != last[1] or not name.startswith(f"{last[0]} "):
            own = {k: v for k, v in defaults.get(name, EMPTY).items() if k.partition(".")[0] not in of_run}
            out |= _split(name, recipe, _list_rows(table, partial(find_origin, recipe, name), own))
            last = name, table
    return out


def _split(name: str, recipe: Recipe, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Split the values into those by methods, settings and the recipe's own file, and the rest."""
    own = (recipe.sources.get(("name",), recipe.name), *GIVEN)
    parts: dict[bool, list[Row]] = {True: [], False: []}
    for row in rows:
        parts[row[1] in own or row[1].startswith("with ")].append(row)
    if not (parts[True] and parts[False]):
        return {name: list(rows)} if rows else {}
    return {f"{name}: what is changed": parts[True], f"{name}: the rest": parts[False]}


def _list_rows(table: Mapping[str, Any], find: Callable[[Path], str], defaults: Mapping[str, Any]) -> list[Row]:
    """Return a table's values with their sources, and its defaults, by section."""
    from shuhari.config.overlay import SCALARS, format_path, split_path, walk_leaves

    sections: dict[str, list[Row]] = {"": []}
    own = dict(walk_leaves(table))
    for path, value in own.items():
        rows = sections.setdefault("" if path[0] in SCALARS else path[0], [])
        rows.append((f"{format_path(path)} = {format_value(value)}", find(path)))
    there = [split_path(key) for key in defaults]
    for key, value in defaults.items():
        path = split_path(key)
        if any(len(p) > len(path) and p[: len(path)] == path for p in there):  # its contents have lines of their own
            continue
        if not any(p[: len(path)] == path for p in own):
            rows = sections.setdefault("" if path[0] in SCALARS else path[0], [])
            rows.append((f"{key} = {format_value(value)}", DEFAULT))
    return [
        row
        for rows in sections.values()
        for row in rows
    ]

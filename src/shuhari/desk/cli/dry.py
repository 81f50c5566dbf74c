"""`train --dry-run`: the sizes of a step, and every value of the resolved recipe with its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shuhari.desk.cli.text import note, say
from shuhari.desk.plain import format_value

if TYPE_CHECKING:
    from shuhari.config.recipe import Recipe
    from shuhari.config.stage import Components


MANY = 1_000_000  # rows of a step that no machine is likely to hold


def dry_run(recipe: Recipe) -> None:
    """Print the recipe and build its components once, so that every mistake but those of data shows."""
    from shuhari.config.build import describe_work
    from shuhari.kernel.abilities import ability
    from shuhari.loop.checks import make_stages

    study = None
    if "study" in recipe.tree:
        from shuhari.loop.study import make_study, trains_runs

        study = make_study(recipe)
        if not trains_runs(study):
            _show_simulation(recipe)
            return
    stages = make_stages(recipe)
    _try_models(recipe, stages)
    defaults: dict[tuple[str, str], list[str]] = {}  # (key, value) -> the stages where it stands
    for stage in stages:
        for key, value in stage.defaults.items():
            defaults.setdefault((key, format_value(value)), []).append(stage.name)
    sources = {k: "default" if len(v) == len(stages) else f"default in {', '.join(v)}" for k, v in defaults.items()}
    sources |= _list_defaults(recipe)
    rows = list_values(recipe, sources)
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
    say()
    _show_rows(rows)


def _show_rows(rows: Sequence[tuple[str, str]]) -> None:
    width = min(72, max((len(text) for text, _ in rows), default=0))
    for text, source in rows:
        say(f"{text:<{width}}  # {source}")


def _show_simulation(recipe: Recipe) -> None:
    """Of a study that trains no run: what it does and reads, and nothing of the recipe that it would train."""
    from shuhari.config.overlay import split_path
    from shuhari.loop.study import OWN

    shown = (*OWN, "alone", "paper", "claim")
    say(f"# {recipe.name}")
    say(f"# study: {_describe_study(recipe)} No run is trained, so nothing else of the recipe is read.")
    say()
    rows = list_values(recipe, _list_defaults(recipe))
    _show_rows([(text, source) for text, source in rows if split_path(text.partition(" =")[0])[0] in shown])


def _describe_study(recipe: Recipe) -> str:
    from shuhari.desk.components import summarise

    use = str(recipe.tree["study"].get("use"))
    try:
        return f"{use}: {summarise('study', use)['summary']}"
    except LookupError:
        return f"{use}."


def _list_defaults(recipe: Recipe) -> dict[tuple[str, str], str]:
    """(key, value) of the settings that a study leaves standing -> "default"."""
    from shuhari.config.settings import Settings

    study = Settings()
    if "study" in recipe.tree:
        study.make_component("study", recipe.tree["study"], "study")
    return {(key, format_value(value)): "default" for key, value in study.defaults.items()}


def list_nested(recipe: Recipe) -> list[str]:
    """A line for each place that several methods wrap: their components stand in each other, which may be meant."""
    from shuhari.config.overlay import RecipeError
    from shuhari.config.recipe import read_method

    wrapped: dict[str, list[str]] = {}
    for name in recipe.tree.get("laid", {}):
        try:
            table = read_method(name).table
        except RecipeError:  # a file that is elsewhere
            continue
        for key, one in table.items():
            if isinstance(one, Mapping) and "wraps" in one:
                wrapped.setdefault(key, []).append(f"{one['use']!r} of {name}")
    return [
        f"{key}: {' stands within '.join(who)}, in the order of --with: look whether both are "
        "meant, or lay one of them" for key, who in wrapped.items() if len(who) > 1
    ]  # fmt: skip


def _try_models(recipe: Recipe, stages: Sequence[Components]) -> None:
    """Make the models of every stage, so that one that does not fit its task shows; not where weights are read from
    elsewhere, which takes time and memory. RecipeError."""
    from shuhari.config.overlay import RecipeError, walk_leaves
    from shuhari.loop.roles import cast_roles

    models: dict[str, Any] = {}
    if any(path[0] == "models" and path[-1] in ("path", "from") for path, _ in walk_leaves(recipe.tree)):
        return
    shared: set[str] = set()
    for stage in stages:
        try:
            cast_roles(stage.models, models, stage.task, recipe.seed, {}, shared, sources=False)
        except (KeyError, ValueError, TypeError) as error:
            message = error.args[0] if isinstance(error, KeyError) and error.args else error
            raise RecipeError("models", f"stage {stage.name!r}: {message}") from error


def list_values(recipe: Recipe, defaults: Mapping[tuple[str, str], str]) -> list[tuple[str, str]]:
    """(`key = value`, source) of the recipe's own values and of the `defaults` it leaves standing, by section."""
    from shuhari.config.overlay import SCALARS, format_path, look_up, split_path, walk_leaves

    sections: dict[str, list[tuple[str, str]]] = {"": []}
    stages, own = recipe.stages, dict(walk_leaves(recipe.tree))
    for path in [p for p in own if p[0] != "stage" and any(p[0] in table for table in stages)]:
        if all(look_up(table, path) != own[path] for table in stages):  # every stage has replaced it
            del own[path]
    for path, value in own.items():
        rows = sections.setdefault("" if path[0] in SCALARS else path[0], [])
        rows.append((f"{format_path(path)} = {format_value(value)}", recipe.sources.get(path, "default")))
    there = {split_path(key) for key, _ in defaults}
    for (key, text), source in defaults.items():
        path = split_path(key)
        if any(len(p) > len(path) and p[: len(path)] == path for p in there):  # what it holds has lines of its own
            continue
        if source != "default" or not any(p[: len(path)] == path for p in own):
            sections.setdefault("" if path[0] in SCALARS else path[0], []).append((f"{key} = {text}", source))
    overlays = sections.pop("stage", [])
    return [row for rows in sections.values() for row in rows] + overlays

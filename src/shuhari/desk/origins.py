"""Origins of the settings of a stage: the file or method that sets each, and what removed those that are gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from shuhari.config.files import read_chain
from shuhari.config.overlay import REMOVE, Path, Sources, list_removed, read_settings
from shuhari.config.recipe import Recipe, read_method
from shuhari.config.staged import name_stages
from shuhari.data import EMPTY

Removals: TypeAlias = Sequence[tuple[Path, str]]  # (key, what removes it)


def find_origin(recipe: Recipe, stage: str, at: Path) -> str:
    """Return the file or method that sets a value of a stage; for a table, the first that sets anything in it."""
    for place in (*((*overlay, *at) for overlay in _list_overlays(recipe, stage)), at):
        if found := _find_source(recipe.sources, place):
            return found
    return _find_last(recipe)


def find_remover(recipe: Recipe, stage: str, at: Path, removals: Removals) -> str:
    """Return what removed a value from a stage: a removal of it, otherwise whatever sets the table around it, or the
    last file."""
    overlays = _list_overlays(recipe, stage)
    for key, who in removals:
        if any(
            _is_within(place, key)
            for place in (
                at,
                *((*overlay, *at) for overlay in overlays),
            )
        ):
            return who
    for overlay in overlays:
        for n in range(len(at), 0, -1):
            if found := _find_source(recipe.sources, (*overlay, *at[:n])):
                return found
    return _find_last(recipe)


def list_removals(
    reference: str, sets: Sequence[str], methods: Sequence[str], remove: Sequence[str], is_method: bool
) -> list[tuple[Path, str]]:
    """Return the removals from a base by settings, methods and the recipe's own file, the last first. is_method: the
    recipe is itself a method."""
    out = [(path, "--remove") for path in list_removed(read_settings(sets, remove))]
    for name in [*reversed(methods), *([reference] if is_method else [])]:
        method = read_method(name)
        out += [(path, f"with {method.name}") for path in list_removed(method.table)]
    if not is_method and not methods:
        name, table = next(read_chain(reference))
        name = str(table.get("name", name))
        stages = name_stages(table.get("stage", {}), name)
        out += [(path, name) for path in list_removed({REMOVE: table.get(REMOVE, [])})]
        out += [
            (("stage", key, *path), name)
            for key, stage in stages.items()
            for path in list_removed(stage)
        ]
    return out


def list_undone(recipe: Recipe, methods: Sequence[str]) -> list[str]:
    """Return a line for each method laid over a recipe that has no effect: all its settings are removed, overridden, or
    equal to the base's."""
    left = [(path[2:] if path[0] == "stage" else path, by) for path, by in recipe.sources.items() if path[0] != "laid"]
    lines = []
    for method in map(read_method, methods):
        says = method.table.keys() - {REMOVE}
        own = [path for path, by in left if by == f"with {method.name}"]
        if (says or method.stages) and not any(path[:1] != ("evaluate",) or "evaluate" in says for path in own):
            lines.append(f"nothing of {method.name} is left: all that it sets is taken out, set otherwise, or in the "
                         "base already; without `--with` the run is the same")  # fmt: skip
    return lines


def _is_within(at: Path, key: Path) -> bool:
    """Whether a removal of a key covers a place. A method calls the part that trains the policy `policy`, whatever its
    name in the base."""
    same = key[:2] == ("part", "policy") and at[:1] == ("part",) and len(key) > 2
    return at[: len(key)] == key or (same and at[2 : len(key)] == key[2:])


def _list_overlays(recipe: Recipe, stage: str) -> list[Path]:
    """Return the paths in a recipe where a stage's own settings stand; repetitions of a stage are called `<name> 2` and
    so on."""
    names = recipe.tree.get("stage", EMPTY)
    return [("stage", name) for name in names if stage == name or stage.startswith(f"{name} ")]


def _find_source(sources: Sources, place: Path) -> str:
    below = (origin for path, origin in sources.items() if path[: len(place)] == place)
    return sources.get(place) or next(below, "")


def _find_last(recipe: Recipe) -> str:
    laid = recipe.tree.get("laid", EMPTY)
    return f"with {' and '.join(laid)}" if laid else recipe.name

"""Where what a stage of a recipe says comes from, and who took out what it no longer says. Plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from shuhari.config.files import read_chain
from shuhari.config.overlay import REMOVE, Path, Sources, list_removed, read_settings
from shuhari.config.recipe import Recipe, read_method
from shuhari.config.staged import name_stages
from shuhari.data import EMPTY

Removals: TypeAlias = Sequence[tuple[Path, str]]  # (key, who takes it out)


def find_origin(recipe: Recipe, stage: str, at: Path) -> str:
    """The file or method that a value of a stage comes from; of a table, the first that says anything of it."""
    for place in (*((*overlay, *at) for overlay in _list_overlays(recipe, stage)), at):
        if found := _find_source(recipe.sources, place):
            return found
    return _find_last(recipe)


def find_remover(recipe: Recipe, stage: str, at: Path, removals: Removals) -> str:
    """Who took a value out of a stage: who says so, who says something of the table around it there, or the last
    file."""
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
    """What is taken out of a base by what is laid over it, the last first: settings, methods, the recipe's own file.
    is_method: the recipe is one itself."""
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
    """A line for each of the methods laid over a recipe of which nothing is left there: all that it sets is taken out,
    set otherwise, or what the base has."""
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
    """Whether a key takes out what stands at a place. A method calls the part of the policy `policy`, whatever its name
    is there."""
    same = key[:2] == ("part", "policy") and at[:1] == ("part",) and len(key) > 2
    return at[: len(key)] == key or (same and at[2 : len(key)] == key[2:])


def _list_overlays(recipe: Recipe, stage: str) -> list[Path]:
    """Where a recipe says what is a stage's own; one that is repeated is called `<name> 2` from the second time on."""
    names = recipe.tree.get("stage", EMPTY)
    return [("stage", name) for name in names if stage == name or stage.startswith(f"{name} ")]


def _find_source(sources: Sources, place: Path) -> str:
    below = (origin for path, origin in sources.items() if path[: len(place)] == place)
    return sources.get(place) or next(below, "")


def _find_last(recipe: Recipe) -> str:
    laid = recipe.tree.get("laid", EMPTY)
    return f"with {' and '.join(laid)}" if laid else recipe.name

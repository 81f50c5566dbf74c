"""Components and recipes of other packages, by the entry-point groups `shuhari.<kind>` and `shuhari.recipes`.

    [project.entry-points."shuhari.task"]       # kinds: `registry.KINDS`
    chess = "chess_tasks.task:Chess"            # a dataclass, known as `chess`
    [project.entry-points."shuhari.recipes"]
    chess = "chess_tasks.recipes"               # a package with TOML files: its `mcts.toml` is the recipe `chess/mcts`

Another package is imported only when it is used by name or listed, and an import error affects only that package. Its
entries cannot replace our own names. Left out: any other hook.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

RECIPES = "recipes"


class PluginError(LookupError):
    """An entry point that cannot be used: which, of which package, and why."""


@cache
def find_offered(group: str) -> Mapping[str, tuple[Any, ...]]:
    """Return name -> entry points of that name in the group `shuhari.<group>`; nothing is imported."""
    from importlib.metadata import entry_points  # reads every installed package: not at start

    out: dict[str, tuple[Any, ...]] = {}
    for point in entry_points(group=f"shuhari.{group}"):
        out[point.name] = (*out.get(point.name, ()), point)
    return out


def component(kind: str, name: str) -> Any:
    """Load the entry point of this kind and name. KeyError if there is none, PluginError if several packages offer it,
    or if it cannot be imported."""
    point = _load_only(kind, name)
    try:
        return point.load()
    except Exception as error:
        raise PluginError(f"{_whose(kind, point)} cannot be loaded: {type(error).__name__}: {error}") from error


def recipes(family: str) -> Iterator[tuple[str, Traversable]]:
    """Yield (`<family>/<file stem>`, file) of each TOML file in the package of a `shuhari.recipes` entry point. Raises
    as `component` does."""
    point = _load_only(RECIPES, family)
    try:
        files = sorted(resources.files(point.value).iterdir(), key=lambda f: f.name)
    except Exception as error:
        raise PluginError(f"{_whose(RECIPES, point)} cannot be read: {type(error).__name__}: {error}") from error
    for file in files:
        if file.name.endswith(".toml"):
            yield f"{family}/{file.name.removesuffix('.toml')}", file


def _load_only(group: str, name: str) -> Any:
    point, *others = find_offered(group)[name]
    if others:
        packages = ", ".join(sorted(p.dist.name if p.dist else p.value for p in (point, *others)))
        raise PluginError(f"{group} {name!r} is offered by several packages ({packages}): remove all but one")
    return point


def _whose(group: str, point: Any) -> str:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "no known package"
    return f"{group} {point.name!r} of {package} ({point.value})"

"""Recipes: a method as a short TOML file, what it builds on, what each stage changes, and where each value came from.

No torch here: listing and resolving recipes is quick. What a table means is for `build` to say; this module knows the
sections and how one table lies over another (`overlay`). Stages are kept by name: `stage` maps a name to its overlay.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources.abc import Traversable
from pathlib import Path as File
from typing import Annotated, Any

from shuhari.bounds import Bounds, Count, Length, Positive, bare, wrong
from shuhari.config.library import FORMAT, Method, methods, named, names, read
from shuhari.config.overlay import (
    BUDGETS,
    NAMED,
    REPEAT,
    SCALARS,
    SINGLE,
    Path,
    RecipeError,
    Sources,
    Tree,
    dotted,
    has,
    lay,
    leaves,
    nested,
    repeated,
    setting,
    split_path,
)
from shuhari.data import EMPTY, nearest
from shuhari.plugins import PluginError

__all__ = ["FORMAT", "Method", "Recipe", "RecipeError", "differences", "dump", "load", "methods", "names", "spreads"]

OWN = ("name", "paper", "summary", "claim")  # of one file alone: a child does not inherit them
_SCALARS: dict[str, Any] = {
    **dict.fromkeys(("name", "summary", "block"), str),
    **dict.fromkeys(("seed", "threads", "micro_batch"), Count),
    **dict.fromkeys(BUDGETS, Positive),
    "format": Annotated[int, Bounds(1, FORMAT)],
    "repeat": Length,
}
# How the work is spread, not what is done: a run may go on with others. Bits may differ from there on, by rounding.
SPREAD = ("threads", "micro_batch", "engine.tokens", "engine.slots", "engine.chunk", "rollout.workers", "rollout.ring")


@dataclass(frozen=True, eq=False)
class Recipe:
    """A resolved recipe. `tree`: its sections, `stage` as name -> overlay; `sources`: where each value came from."""

    name: str
    tree: Tree
    sources: Sources = field(default_factory=dict)

    @property
    def seed(self) -> int:
        return int(self.tree.get("seed", 0))

    @property
    def total(self) -> int | None:
        """Steps of all stages, None where a budget is in something else, and of a study."""
        if "study" in self.tree:
            return None
        steps = [stage["steps"] for stage in self.stages if "steps" in stage]
        return int(sum(steps)) if len(steps) == len(self.stages) else None

    @property
    def threads(self) -> int:
        """Threads of torch; 0 leaves them as they are. The bits of a run depend on their number."""
        return int(self.tree.get("threads", 0))

    @cached_property
    def stages(self) -> list[Tree]:
        """One whole table a stage, in order, without `stage`, with the stage's `name` (`main` where there are none)."""
        base = {k: v for k, v in self.tree.items() if k not in ("stage", "name")}
        out = []
        for name, over in repeated(self.tree.get("stage") or {"main": {}}):
            table = deepcopy(base)
            try:
                lay(table, over, name, {})
            except RecipeError as error:
                raise RecipeError(f"stage {name!r}, {error.where}", error.problem) from None
            if not any(b in table for b in BUDGETS):
                raise RecipeError(f"stage {name!r}" if over else "", f"no budget: give one of {', '.join(BUDGETS)}")
            out.append({**table, "name": name})
        return out

    def changed(self, settings: Mapping[str, Any], origin: str = "set") -> Recipe:
        """With `settings` (dotted keys or nested mappings) laid over. RecipeError where every stage sets one itself."""
        over: Tree = {}
        for key, value in settings.items():
            _join(over, nested(split_path(key), _plain(value, key)))
        tree, sources = deepcopy(self.tree), dict(self.sources)
        for path, _ in leaves(over):
            _check_reaches(path, tree.get("stage", {}))
            if path[0] == "stage" and len(path) > 1 and path[1] not in tree.get("stage", {}):
                there = tree.get("stage", {})
                raise RecipeError(f"stage.{dotted(path[1:2])}", f"no such stage; {nearest(path[1], there)}")
        _lay(tree, over, origin, sources)
        _check(tree)
        return Recipe(self.name, tree, sources)


def load(reference: str | File, sets: Sequence[str] = (), settings: Mapping[str, Any] = EMPTY) -> Recipe:
    """The recipe of a name `family/method`, of a `.toml` file, or of a run's folder, resolved.

    `sets` are `a.b.c=value` (command line), `settings` the same from Python. Raises RecipeError.
    """
    try:
        return _load(str(reference), sets, settings)
    except RecursionError:
        raise RecipeError("", f"{reference}: tables lie too deep in each other") from None


def _load(reference: str, sets: Sequence[str], settings: Mapping[str, Any]) -> Recipe:
    chain = list(_chain(reference))
    if not chain:
        raise RecipeError("", "'' names no recipe: expected family/method, a .toml file, or a run's folder")
    tree: Tree = {}
    sources: Sources = {}
    for i, (name, table) in enumerate(reversed(chain)):
        last = i + 1 == len(chain)
        own = {k: v for k, v in table.items() if k != "extends" and (last or k not in OWN)}
        if "stage" in own:
            if isinstance(own["stage"], list):  # a list of stages is whole; [stage.<name>] changes one
                lay(tree, {"stage": False}, name, sources)
            own["stage"] = _by_name(own["stage"], name)
        _lay(tree, own, name, sources)
    _check(tree)
    recipe = Recipe(str(tree.pop("name", chain[0][0])), {"format": FORMAT, **tree}, sources)
    given: dict[str, Any] = {}
    for text in sets:
        path, value = setting(text)
        given[dotted(path)] = value
    recipe = recipe.changed(given, "--set") if given else recipe
    recipe = recipe.changed(settings) if settings else recipe
    assert recipe.stages  # resolves them: a mistake in an overlay is found here
    return recipe


def dump(recipe: Recipe) -> str:
    """TOML that loads to the same recipe, with nothing left to extend."""
    import tomli_w

    tree = {"format": FORMAT, "name": recipe.name, **{k: v for k, v in recipe.tree.items() if k != "stage"}}
    if recipe.tree.get("stage"):
        tree["stage"] = [{"name": name, **over} for name, over in recipe.tree["stage"].items()]
    return tomli_w.dumps(tree)


def differences(there: str, here: str) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (value there, value here) of the settings in which two dumps differ; None: not set."""
    theirs, ours = (_settings(text) for text in (there, here))
    keys = [k for k in dict.fromkeys([*ours, *theirs]) if ours.get(k) != theirs.get(k)]
    return {dotted(k): (theirs.get(k), ours.get(k)) for k in keys}


def spreads(key: str) -> bool:
    """Whether a dotted key only says how the work is spread, for the run or for a stage of it."""
    path = split_path(key)
    return dotted(path[2:] if path[0] == "stage" else path) in SPREAD


def _settings(text: str) -> dict[Path, Any]:
    tree = tomllib.loads(text)
    return dict(leaves({**tree, "stage": {s["name"]: s for s in tree.get("stage", [])}}))


# ------------------------------------------------------------------------------------------------ files


def _chain(reference: str) -> Iterator[tuple[str, Tree]]:
    """(name, table) of a recipe and of what it extends, youngest first."""
    seen: dict[str, str] = {}
    here: File | None = None
    while reference:
        name, source = _find(reference, here)
        key = str(source)
        if key in seen:
            raise RecipeError("extends", f"{' -> '.join([*seen.values(), name])} goes round in a circle")
        seen[key] = name
        table = read(name, source)
        here = source.parent if isinstance(source, File) and source.suffix == ".toml" else None
        if here is not None:
            _anchor(table, here)
        yield name, table
        reference = table.get("extends", "")
        if not isinstance(reference, str):
            raise RecipeError(
                "extends", f"{reference!r} in {name}: expected a recipe's name, or a path ending in .toml"
            )


def place(reference: str | File) -> File | None:
    """The file of a recipe; None where it lies in none of its own. RecipeError where there is no such recipe."""
    found = _find(str(reference), None)[1]
    return found if isinstance(found, File) else None


def _find(reference: str, here: File | None) -> tuple[str, Traversable]:
    path = (here or File()) / File(reference).expanduser()
    if path.is_dir() and (path / "recipe.toml").is_file():
        path = path / "recipe.toml"
    if path.suffix == ".toml":
        if not path.is_file():
            near = f"; {nearest(path.name, files)}" if (files := _beside(path)) else ""
            raise RecipeError("", f"no recipe file {str(path)!r} (looked in {File.cwd()}){near}")
        return path.stem, path.resolve()
    try:
        found = named(reference)
    except PluginError as error:
        raise RecipeError("", str(error)) from None
    if found is None:
        near = nearest(reference, [*names(), *_beside(path)])
        message = near if near.startswith("did you mean") else "`shuhari methods` lists those that there are"
        raise RecipeError("", f"no recipe {reference!r}; {message}")
    return reference, found


def _beside(path: File) -> list[str]:
    """The recipe files of a folder, for an error to name."""
    return [f.name for f in path.parent.glob("*.toml")] if path.parent.is_dir() else []


def _anchor(table: Tree, folder: File) -> None:
    """Make `file.py:Class` absolute where the file lies beside the recipe, so that it is found from any folder."""
    for key, value in table.items():
        if isinstance(value, dict):
            _anchor(value, folder)
        elif isinstance(value, list):
            for entry in value:
                if isinstance(entry, dict):
                    _anchor(entry, folder)
        elif isinstance(value, str) and key in ("use", "name") and ".py:" in value:
            file, _, attribute = value.rpartition(":")
            if (folder / file).is_file():
                table[key] = f"{(folder / file).resolve()}:{attribute}"


def _by_name(stages: Any, recipe: str) -> Any:
    if isinstance(stages, dict) or stages is False:
        return stages
    out: Tree = {}
    for i, stage in enumerate(stages if isinstance(stages, list) else [stages]):
        if not isinstance(stage, dict):
            raise RecipeError("stage", f"{stage!r} in {recipe}: expected [[stage]] tables")
        name = str(stage.get("name", i + 1))
        if name in out:
            raise RecipeError("stage", f"two stages of {recipe} are called {name!r}: names are unique")
        out[name] = {k: v for k, v in stage.items() if k != "name"}
    return out


# ------------------------------------------------------------------------------------------------ checks


def _plain(value: Any, key: str) -> Any:
    """A setting from Python as TOML could say it."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v, f"{key}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, key) for v in value]
    if value is None or not isinstance(value, bool | int | float | str):
        raise RecipeError(
            key, f"{value!r}: expected a truth value, number, text, list or table (false removes a table)"
        )
    return value


def _lay(tree: Tree, over: Mapping[str, Any], origin: str, sources: Sources) -> None:
    """Lay a file over those below. What it removes, inherited stages need remove no longer."""
    gone = [p for p in sources if p[0] == "stage" and len(p) > 2 and has(tree, p[2:])]
    lay(tree, over, origin, sources)
    for path in gone:
        if path in sources and not has(tree, path[2:]):
            at = tree
            for key in path[:-1]:
                at = at[key]
            if at[path[-1]] is False:
                del at[path[-1]], sources[path]


def _join(tree: Tree, more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            _join(tree[key], value)
        else:
            tree[key] = value


def _check_reaches(path: Path, stages: Mapping[str, Any]) -> None:
    same = [(b,) for b in BUDGETS] if path[0] in BUDGETS else [path]
    if stages and path[0] != "stage" and all(any(has(over, p) for p in same) for over in stages.values()):
        one = f"stage.{dotted((next(iter(stages)),))}.{dotted(path)}"
        raise RecipeError(dotted(path), f"every stage sets it for itself: say which stage, such as {one}")


def _check(tree: Tree, where: str = "") -> None:
    """The sections of a recipe, or of a stage's overlay: known keys, tables where tables belong, numbers in range."""
    known = [*SCALARS, *SINGLE, *NAMED] if not where else [*BUDGETS, *REPEAT, "micro_batch", *SINGLE[2:-1], *NAMED[:-1]]
    for key, value in tree.items():
        at = f"{where}{key}"
        if key not in known:
            raise RecipeError(at, f"no such key in a recipe; {nearest(key, known if where else [*known, 'extends'])}")
        if key in _SCALARS:
            _check_scalar(_SCALARS[key], value, at)
        if key in (*SINGLE, *NAMED) and not isinstance(value, dict) and not (where and value is False):
            raise RecipeError(at, f"{value!r}: expected a table")
        if key in NAMED and isinstance(value, dict):
            for name, entry in value.items():
                if where and name == "replace" and entry is True:
                    continue
                if not isinstance(entry, dict) and not (where and entry is False):
                    raise RecipeError(f"{at}.{dotted((name,))}", f"{entry!r}: expected a table (false removes one)")
    for name, over in tree.get("stage", {}).items():
        _check(over, f"stage.{dotted((name,))}.")
    if not where and isinstance(tree.get("task", EMPTY).get("name", ""), str) and "use" in tree.get("task", EMPTY):
        raise RecipeError("task.use", "a task is chosen by `name`")


def _check_scalar(hint: Any, value: Any, at: str) -> None:
    kinds, told = {str: (str, "a text"), int: (int, "a whole number"), float: (int | float, "a number")}[bare(hint)]
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise RecipeError(at, f"{value!r}: expected {told}")
    if told := wrong(hint, value):
        raise RecipeError(at, f"{value!r}: {told}")

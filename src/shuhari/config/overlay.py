"""One recipe table laid over another, with where each value came from. Plain dicts in, plain dicts out; no torch.

Rules: `remove` lists dotted keys of the table below, which are removed first; then tables merge key by key. A table is
replaced as a whole if its `use` (for a task: `name`) changes, if the new one is a schedule, or if a role gets
`same_as`, or loses it by `use` or `init`; a list is always replaced. Settings that any component in that place has stay
(`KEPT`). A budget replaces the budget below it. Inside `stage`, overlays and their removals are kept as data, to be
laid over the rest when the stages are resolved.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

from shuhari.data import nearest

Path: TypeAlias = tuple[str, ...]
Tree: TypeAlias = dict[str, Any]
Sources: TypeAlias = dict[Path, str]

BUDGETS = ("steps", "decisions", "tokens", "env_steps", "updates", "seconds")
SCALARS = ("format", "name", "summary", "alone", "seed", "threads", "micro_batch", "stop_when", *BUDGETS)
WHOLE = ("laid", "paper", "study", "distributed")  # tables of the whole run, which no stage has
SINGLE = (*WHOLE, "claim", "task", "engine", "curriculum", "rollout", "buffer", "evaluate", "store")
PLACE = "before"  # of a stage in a file, of a transform: the one before which it stands
REPEAT = ("repeat", "block")  # of a stage: how often it runs, and together with which others
NAMED = ("models", "reward", "collect", "transform", "part", "learner", "follow", "stage")  # tables of named tables
OF_STAGE = (*BUDGETS, *REPEAT, "micro_batch", "stop_when", *SINGLE[len(WHOLE) + 1 :], *NAMED[:-1])
REMOVE = "remove"  # of a recipe, a stage, a method, an arm: the keys of what lies below that are taken out
KIND_IN = {  # section, or `terms` of a part -> the kind of the components there
    "collect": "transform",
    "transform": "transform",
    "terms": "objective",
    "rollout": "rollout",
    "curriculum": "curriculum",
    "buffer": "buffer",
}
KEPT = {  # section -> what is asked of any component there, and stays where another takes its place
    "terms": ("reduce", "stream", "weight"),
    "rollout": ("n", "sampling"),
    "collect": ("before",),
    "transform": ("before",),
}
USE = {  # what stands in a section whose table names no component
    "engine": "local",
    "curriculum": "sequential",
    "rollout": "single",
    "buffer": "fresh",
    "optimiser": "adamw",
}
NEEDS = ("groups", "steps", "text", "lanes", "solutions")  # of a method, which its base must have: `[needs]`
DEPTH = 32  # names of a dotted key
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PIECE = re.compile(r"""\s*("[^"]*"|'[^']*'|[^."'=\s]+)\s*(\.|$)""")


def copy_tree(value: Any) -> Any:
    """Return a deep copy of a table or of a value in one. For plain tables `deepcopy` makes the same, several times
    slower, and recipes are copied each time something is laid over them."""
    if type(value) is dict:
        return {key: copy_tree(x) for key, x in value.items()}
    if type(value) is list:
        return [copy_tree(x) for x in value]
    return value if isinstance(value, str | int | float) or value is None else deepcopy(value)


def read_budgets(stage: Mapping[str, Any]) -> Tree:
    """Return what a stage may spend, by unit."""
    return {unit: stage[unit] for unit in BUDGETS if unit in stage}


class RecipeError(ValueError):
    """A mistake in a recipe. `where`: the dotted key; `problem`: what is there, what was expected, the nearest one."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}" if where else problem)
        self.where, self.problem = where, problem


def format_path(path: Path) -> str:
    """Return a path as TOML writes it."""
    return ".".join(k if _BARE.fullmatch(k) else f'"{k}"' for k in path)


def walk_leaves(
    tree: Mapping[str, Any], path: Path = (), *, whole: Callable[[object], bool] = lambda value: False
) -> Iterator[tuple[Path, Any]]:
    """Yield (path, value) of everything that is no table, and of empty tables, in order. `whole`: which tables are
    values."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value and not whole(value):
            yield from walk_leaves(value, (*path, key), whole=whole)
        else:
            yield (*path, key), value


def look_up(tree: Any, path: Path) -> Any:
    """Return what is at a path; None if nothing is."""
    there = tree
    for key in path:
        if not isinstance(there, Mapping) or key not in there:
            return None
        there = there[key]
    return there


def is_schedule(value: object) -> bool:
    """Whether a table is a whole schedule: `{from = .., to = ..}` or `{from = .., steps = ..}`."""
    return isinstance(value, Mapping) and "from" in value and ("to" in value or "steps" in value)


def lay(tree: Tree, over: Mapping[str, Any], origin: str, sources: Sources, path: Path = ()) -> None:
    """Lay `over` on `tree`, in place, recording `origin` for its values. RecipeError for a key to remove that does not
    exist."""
    whole = not path or _is_stage(path)  # a recipe's table, or a stage's
    if whole and any(b in over for b in BUDGETS):
        for b in BUDGETS:
            _forget(tree, sources, (*path, b))
    for gone in list_removed(over, path) if whole else ():
        _remove(tree, gone, origin, sources, path)
    for key, new in over.items():
        at, old = (*path, key), tree.get(key)
        if whole and key == REMOVE:
            continue
        _refuse_markers(new, old, at)
        if isinstance(new, Mapping):
            kept, origins = Tree(), Sources()
            if not isinstance(old, dict) or _replaces(old, new, at):
                if isinstance(old, dict):
                    kept = {k: old[k] for k in list_kept(_find_place(at)) if k in old}
                    origins = {p: by for p, by in sources.items() if p[: len(at)] == at} if kept else origins
                _forget(tree, sources, at)
                tree[key] = {}
            if not new and not tree[key]:
                sources[at] = origin
            else:
                sources.pop(at, None)  # no longer an empty table
            lay(tree[key], new, origin, sources, at)
            if kept:
                _fill(tree[key], kept, sources, origins, at)
        else:
            _forget(tree, sources, at)
            tree[key] = copy_tree(new)
            sources[at] = origin


def list_removed(over: Mapping[str, Any], path: Path = ()) -> list[Path]:
    """Return the places that a table removes. RecipeError if `remove`, at `path`, is no list of dotted keys."""
    keys = over.get(REMOVE, [])
    if not isinstance(keys, list | tuple) or not all(isinstance(key, str) for key in keys):
        where = format_path((*path, REMOVE))
        raise RecipeError(where, f'{keys!r:.80}: expected a list of dotted keys, such as ["collect.advantage"]')
    return [split_path(key) for key in keys]


def merge_overlays(tables: Iterable[Mapping[str, Any]]) -> Tree:
    """Merge overlays of one stage into one, the later over the earlier; their removals are kept as data."""
    merged: Tree = {"stage": {"": {}}}
    for table in tables:
        lay(merged, {"stage": {"": table}}, "", {})
    return merged["stage"][""]


def list_kept(at: Path) -> Path:
    """Return the keys of a component's table that outlast a change of its `use`, such as `weight` of a term: any
    component in that place has them."""
    at = leave_learner(at)
    terms, sole = at[:1] == ("part",) and at[-2:-1] == ("terms",), len(at) == 1 and at[0] == "rollout"
    named = len(at) == 2 and at[0] in ("collect", "transform")
    return KEPT["terms" if terms else at[0]] if terms or sole or named else ()


def leave_learner(at: Path) -> Path:
    """Return a path of a stage without the name of a learner: `learner.<name>.buffer` becomes `buffer`."""
    return at[2:] if at[:1] == ("learner",) else at


def is_entry(at: Path) -> bool:
    """Whether a path of a stage names a whole section, an entry of one, or a term."""
    section = at[0] in (*SINGLE, *NAMED) and (len(at) == 1 or (len(at) == 2 and at[0] in NAMED))
    return section or at[-2:-1] == ("terms",)


def _is_stage(path: Path) -> bool:
    return len(path) == 2 and path[0] == "stage"


def _refuse_markers(new: object, old: object, at: Path) -> None:
    """Raise RecipeError for the syntax by which an earlier version of the language removed an entry, or all of a
    table."""
    place = _find_place(at) or at
    false = new is False and (isinstance(old, dict) or is_entry(place))
    if (false or (isinstance(new, Mapping) and new.get("replace") is True)) and at[0] != "claim":
        marker, key = "false" if false else "replace = true", format_path(place)
        of = f"[stage.{format_path(at[1:2])}]" if place != at else "the recipe"
        raise RecipeError(format_path(at), f'{marker} no longer removes a table: write {REMOVE} = ["{key}"] at the '
                          f'top of {of}'
                          f" (--{REMOVE} {format_path(at)})")  # fmt: skip


def _remove(tree: Tree, gone: Path, origin: str, sources: Sources, path: Path = ()) -> None:
    """Remove what is at `gone`. A stage also lists it: it is removed from the recipe once stages are resolved."""
    if not path and gone[0] == "stage" and len(gone) > 2 and look_up(tree, gone[:2]) is not None:
        _remove(tree["stage"][gone[1]], gone[2:], origin, sources, gone[:2])
        return
    above = look_up(tree, gone[:-1])
    there = isinstance(above, dict) and gone[-1] in above
    if there:
        _forget(above, sources, (*path, *gone))
    if path:
        for n in range(len(gone) - 1, 0, -1):  # of an overlay no empty tables are left
            if there and look_up(tree, gone[:n]) == {}:
                del (look_up(tree, gone[: n - 1]))[gone[n - 1]]
        listed = tree.setdefault(REMOVE, [])
        if (key := format_path(gone)) not in listed:
            listed.append(key)
        sources[(*path, REMOVE)] = origin
    elif there and not above and len(gone) > 1:
        sources[gone[:-1]] = origin
    elif not there and len(gone) > 1:
        known = nearest(gone[-1], above) if isinstance(above, Mapping) else f"there is no {format_path(gone[:-1])!r}"
        raise RecipeError(format_path(gone), f"{REMOVE} names an entry that does not exist, {gone[-1]!r}; {known}")


def _forget(tree: Tree, sources: Sources, at: Path) -> None:
    if not isinstance(tree.pop(at[-1], None), dict):  # nothing lies below it: many keys are many calls
        sources.pop(at, None)
        return
    for path in [p for p in sources if p[: len(at)] == at]:
        del sources[path]


def _fill(tree: Tree, below: Mapping[str, Any], sources: Sources, origins: Sources, path: Path) -> None:
    """Fill in old values that are missing now, with their `origins`; a schedule is one value."""
    for key, value in below.items():
        at, there = (*path, key), tree.get(key)
        if key not in tree:
            tree[key] = value
            sources |= {p: origin for p, origin in origins.items() if p[: len(at)] == at}
        elif isinstance(value, Mapping) and isinstance(there, dict) and not is_schedule(there):
            _fill(there, value, sources, origins, at)


def _find_place(at: Path) -> Path:
    """Return the place of the recipe that a key of a stage's overlay changes."""
    return at[2:] if at[0] == "stage" else at


def _replaces(old: Mapping[str, Any], new: Mapping[str, Any], at: Path) -> bool:
    if is_schedule(new) or "same_as" in new or ("same_as" in old and not new.keys().isdisjoint(("use", "init"))):
        return True
    place = _find_place(at)
    place = place[1:] if place[:2] == ("evaluate", "task") else place
    if place == ("task",) or (place[:1] == ("task",) and place[-2:-1] == ("tasks",)):  # one of a mixture is a task too
        return "name" in new and "name" in old and new["name"] != old["name"]
    return "use" in new and new["use"] != old.get("use", USE.get(at[-1], at[-1]))


# ------------------------------------------------------------------------------------------------ --set


def parse_setting(text: str) -> tuple[Path, Any]:
    """Return `a.b.c=value` as (path, value). The value is TOML; a bare word is a string; names with dots are quoted."""
    key, eq, value = text.partition("=")
    if not eq:
        raise RecipeError("", f"--set {text!r}: expected key=value, such as part.policy.optimiser.lr=1e-3")
    return split_path(key), parse_value(value)


def read_settings(sets: Iterable[str], remove: Iterable[str] = ()) -> Tree:
    """Return dotted key -> value of settings `a.b.c=value`; the keys of `remove`, given as a setting or by itself,
    together."""
    given: Tree = {}
    gone: list[str] = []
    for path, value in map(parse_setting, sets):
        if path == (REMOVE,):
            gone += map(format_path, list_removed({REMOVE: value}))
        else:
            given[format_path(path)] = value
    gone += remove
    return {**({REMOVE: gone} if gone else {}), **given}


def split_path(key: str) -> Path:
    """Return a dotted key as a path."""
    at, out = 0, []
    while piece := _PIECE.match(key, at):
        out.append(piece[1].strip("\"'"))
        at = piece.end()
        if not piece[2]:
            break
    if len(out) > DEPTH:
        raise RecipeError("", f"{key[:60]!r} has {len(out)} names: expected at most {DEPTH}")
    if not out or at != len(key) or key.rstrip().endswith("."):
        raise RecipeError("", f"{key!r} is not a dotted key: expected names joined by dots, such as task.name")
    return tuple(out)


def parse_value(text: str) -> Any:
    """Return the value of a text if it is TOML, else the text itself."""
    try:
        table = tomllib.loads(f"value = {text}")
    except RecursionError:
        raise RecipeError("", f"the value {text[:60]!r} is nested too deeply: expected fewer tables inside "
                          "tables") from None
    except ValueError as error:  # no TOML, or a number of thousands of digits
        if not isinstance(error, tomllib.TOMLDecodeError):
            raise RecipeError("", f"the value {text[:60]!r}: {error}") from None
        if text.lstrip()[:1] in ("[", "{", '"', "'"):
            raise RecipeError("", f"the value {text!r} is not TOML: {error}") from None
        return text.strip()
    return table["value"] if len(table) == 1 else text.strip()


def order_entries(entries: Mapping[str, Any], places: Mapping[str, Any], where: str, what: str = "entry") -> Tree:
    """Return the entries of the table at `where` in their order, with the entries of `places` (name -> before which
    other) moved. RecipeError for an unknown place."""
    order = list(entries)
    for name, before in places.items():
        others = [other for other in order if other != name]
        if before not in others:
            message = f"{before!r} is no other {what}; {nearest(str(before), others)}"
            raise RecipeError(f"{where}.{format_path((name,))}.{PLACE}", message)
        others.insert(others.index(before), name)
        order = others
    return {name: entries[name] for name in order}


def nest(path: Path, value: Any) -> Tree:
    """Return {a: {b: value}} for the path (a, b)."""
    for key in reversed(path):
        value = {key: value}
    return value


def join(tree: Tree, more: Mapping[str, Any]) -> None:
    """Merge tables into `tree`, in place, key by key; none of the rules by which one recipe is laid over another."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            join(tree[key], value)
        else:
            tree[key] = value

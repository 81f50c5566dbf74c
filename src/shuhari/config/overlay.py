"""One recipe table laid over another, with where each value came from. Plain dicts in, plain dicts out; no torch.

Rules: tables merge key by key; `name = false` removes a table, `replace = true` inside one drops all that stood there;
a table whose `use` (of a task: `name`) changes, a schedule and a list replace what stood there, but another rollout is
asked for the same `n` and `sampling`; a budget replaces the budget below it. Inside `stage`, overlays are kept as data,
to be laid over the rest when the stages are resolved.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

from shuhari.data import nearest

Path: TypeAlias = tuple[str, ...]
Tree: TypeAlias = dict[str, Any]
Sources: TypeAlias = dict[Path, str]

BUDGETS = ("steps", "decisions", "tokens", "env_steps", "updates", "seconds")
SCALARS = ("format", "name", "summary", "alone", "seed", "threads", "micro_batch", *BUDGETS)
WHOLE = ("laid", "paper", "study", "distributed")  # tables of the whole run, which no stage has
SINGLE = (*WHOLE, "claim", "task", "engine", "curriculum", "rollout", "buffer", "evaluate", "store")
# How the work is spread, not what is done: a run may go on with others. Bits may differ from there on, by rounding.
_ENGINE = "tokens slots chunk python memory threads log start patience address connections"
SPREAD = ("threads", "micro_batch", "rollout.workers", "rollout.ring", "curriculum.folder",
          *(f"engine.{name}" for name in _ENGINE.split()))  # fmt: skip
REPEAT = ("repeat", "block")  # of a stage: how often it runs, and together with which others
NAMED = ("models", "reward", "collect", "transform", "part", "learner", "follow", "stage")  # tables of named tables
OF_STAGE = (*BUDGETS, *REPEAT, "micro_batch", *SINGLE[len(WHOLE) + 1 :], *NAMED[:-1])
ASKED = ("n", "sampling")  # of [rollout]: what is asked for, whichever rollout does it
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
    """A copy of a table or of what stands in one, in depth. Of plain tables `deepcopy` makes the same, several times
    slower, and recipes are copied at each thing that is laid over them."""
    if type(value) is dict:
        return {key: copy_tree(x) for key, x in value.items()}
    if type(value) is list:
        return [copy_tree(x) for x in value]
    return value if isinstance(value, str | int | float) or value is None else deepcopy(value)


def read_budgets(stage: Mapping[str, Any]) -> Tree:
    """What a stage may spend, by unit."""
    return {unit: stage[unit] for unit in BUDGETS if unit in stage}


class RecipeError(ValueError):
    """A mistake in a recipe. `where`: the dotted key; `problem`: what is there, what was expected, the nearest one."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}" if where else problem)
        self.where, self.problem = where, problem


def format_path(path: Path) -> str:
    """A path as TOML writes it."""
    return ".".join(k if _BARE.fullmatch(k) else f'"{k}"' for k in path)


def walk_leaves(tree: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """(path, value) of everything that is no table, and of empty tables, in order."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from walk_leaves(value, (*path, key))
        else:
            yield (*path, key), value


def look_up(tree: Any, path: Path) -> Any:
    """What stands at a path; None where nothing does."""
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
    """Lay `over` on `tree`, in place, noting `origin` for what it brings. RecipeError where `false` removes nothing."""
    if (not path or _is_stage(path)) and any(b in over for b in BUDGETS):
        for b in BUDGETS:
            _forget(tree, sources, (*path, b))
    for key, new in over.items():
        at, old = (*path, key), tree.get(key)
        if new is False and (isinstance(old, dict) or _is_removable(at)):
            _remove(tree, sources, at, origin)
        elif isinstance(new, Mapping):
            whole = _is_whole(new)
            if whole and at[0] not in ("stage", "claim"):  # kept there, to be done when stages and arms are resolved
                new = {k: v for k, v in new.items() if k != "replace"}
            asked, origins = Tree(), Sources()
            if whole or not isinstance(old, dict) or _replaces(old, new, at):
                if not whole and isinstance(old, dict) and _find_place(at) == ("rollout",):
                    asked = {k: old[k] for k in ASKED if k in old and not _is_whole(new.get(k))}
                    origins = {p: origin for p, origin in sources.items() if p[: len(at)] == at}
                _forget(tree, sources, at)
                tree[key] = {}
            if not new and not tree[key]:
                sources[at] = origin
            else:
                sources.pop(at, None)  # no longer an empty table
            lay(tree[key], new, origin, sources, at)
            if asked:
                _fill(tree[key], asked, sources, origins, at)
        else:
            _forget(tree, sources, at)
            tree[key] = copy_tree(new)
            sources[at] = origin


def _is_whole(new: object) -> bool:
    """Whether a table drops all that stood in its place."""
    return isinstance(new, Mapping) and new.get("replace") is True


def _is_stage(path: Path) -> bool:
    return len(path) == 2 and path[0] == "stage"


def _is_removable(at: Path) -> bool:
    """Whether a table with a name of its own stands there, or may."""
    if at[0] == "reward" and len(at) > 1:
        return len(at) == 2 or at[1] == "weights"
    if at[0] == "claim":  # what its arms remove is removed from them, once they are made
        return len(at) == 1
    section = len(at) == 1 and at[0] in (*SINGLE, *NAMED)
    tested = at[0] == "evaluate" and (at[1:] == ("task",) or (len(at) == 3 and at[1] in ("more", "metrics")))
    return section or tested or (len(at) == 2 and at[0] in NAMED) or at[-2:-1] == ("terms",)


def _remove(tree: Tree, sources: Sources, at: Path, origin: str) -> None:
    key = at[-1]
    if at[0] == "stage" and len(at) > 2:  # to be done to the recipe below, once the stages are resolved
        _forget(tree, sources, at)
        tree[key], sources[at] = False, origin
    elif key in tree:
        _forget(tree, sources, at)
    elif len(at) > 1:
        raise RecipeError(
            format_path(at), f"false removes an entry, but there is no {key!r} here; {nearest(key, tree)}"
        )


def _forget(tree: Tree, sources: Sources, at: Path) -> None:
    if not isinstance(tree.pop(at[-1], None), dict):  # nothing lies below it: many keys are many calls
        sources.pop(at, None)
        return
    for path in [p for p in sources if p[: len(at)] == at]:
        del sources[path]


def _fill(tree: Tree, below: Mapping[str, Any], sources: Sources, origins: Sources, path: Path) -> None:
    """Put what stood there before where nothing stands now, with its `origins`; a schedule is one value."""
    for key, value in below.items():
        at, there = (*path, key), tree.get(key)
        if key not in tree:
            tree[key] = value
            sources |= {p: origin for p, origin in origins.items() if p[: len(at)] == at}
        elif isinstance(value, Mapping) and isinstance(there, dict) and not is_schedule(there):
            _fill(there, value, sources, origins, at)


def _find_place(at: Path) -> Path:
    """The place that a key of a stage's overlay lies over."""
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
    """`a.b.c=value` as (path, value). The value is TOML; a bare word is a string; names with dots are quoted."""
    key, eq, value = text.partition("=")
    if not eq:
        raise RecipeError("", f"--set {text!r}: expected key=value, such as part.policy.optimiser.lr=1e-3")
    return split_path(key), parse_value(value)


def split_path(key: str) -> Path:
    """A dotted key as a path."""
    at, out = 0, []
    while piece := _PIECE.match(key, at):
        out.append(piece[1].strip("\"'"))
        at = piece.end()
        if not piece[2]:
            break
    if len(out) > DEPTH:
        raise RecipeError("", f"{key[:60]!r} has {len(out)} names: expected at most {DEPTH}")
    if not out or at != len(key) or key.rstrip().endswith("."):
        raise RecipeError("", f"{key!r} is no dotted key: expected names joined by dots, such as task.name")
    return tuple(out)


def parse_value(text: str) -> Any:
    """TOML where it is TOML, else the text itself."""
    try:
        table = tomllib.loads(f"value = {text}")
    except RecursionError:
        raise RecipeError("", f"the value {text[:60]!r} lies too deep: expected fewer tables in each other") from None
    except ValueError as error:  # no TOML, or a number of thousands of digits
        if not isinstance(error, tomllib.TOMLDecodeError):
            raise RecipeError("", f"the value {text[:60]!r}: {error}") from None
        if text.lstrip()[:1] in ("[", "{", '"', "'"):
            raise RecipeError("", f"the value {text!r} is not TOML: {error}") from None
        return text.strip()
    return table["value"] if len(table) == 1 else text.strip()


def expand_repeats(stages: Mapping[str, Tree]) -> Iterator[tuple[str, Tree]]:
    """(name, overlay) of the stages as they run: one with `repeat = n` n times; those in a row that have one `block` in
    turn, n times. From the second time on a stage is called `<name> 2` and so on. RecipeError where the stages of a
    block do not agree on `repeat`, or where two stages would have one name."""
    blocks: list[list[tuple[str, Tree]]] = []
    for name, over in stages.items():
        follows = blocks and over.get("block") and blocks[-1][0][1].get("block") == over["block"]
        blocks[-1].append((name, over)) if follows else blocks.append([(name, over)])
    seen: set[str] = set()
    for block in blocks:
        times = {over["repeat"]: name for name, over in block if "repeat" in over} or {1: ""}
        if len(times) > 1:
            message = f"{min(times)} and {max(times)} in one block: expected one number, in any of its stages"
            raise RecipeError(f"stage.{format_path((times[max(times)],))}.repeat", message)
        for i in range(next(iter(times))):
            for name, over in block:
                called = f"{name} {i + 1}" if i else name
                if called in seen:
                    raise RecipeError(f"stage.{format_path((name,))}", f"two stages would be called {called!r}")
                seen.add(called)
                yield called, {k: v for k, v in over.items() if k not in REPEAT}


def nest(path: Path, value: Any) -> Tree:
    """{a: {b: value}} of the path (a, b)."""
    for key in reversed(path):
        value = {key: value}
    return value


def join(tree: Tree, more: Mapping[str, Any]) -> None:
    """Merge tables into `tree`, in place, key by key; none of the rules by which one recipe lies over another."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            join(tree[key], value)
        else:
            tree[key] = value


def has(tree: Any, path: Path) -> bool:
    """Whether a tree says something at a path, or above it."""
    for key in path:
        if not isinstance(tree, Mapping):
            return True
        if key not in tree:
            return False
        tree = tree[key]
    return True

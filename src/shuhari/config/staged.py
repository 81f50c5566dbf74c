"""The stages of a file: `[[stage]]` is a new one, `[stage.<name>]` changes one of those below. Plain tables.

A file that changes some and brings others, which TOML cannot write in both ways, has `new = true` in each
`[stage.<name>]` that is new. If nothing below has stages, every table is a new one.

Left out: how one stage's table is laid over another (`overlay`), and over the sections of a recipe (`laid`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any

from shuhari.config.overlay import PLACE, REMOVE, RecipeError, Tree, format_path, list_removed
from shuhari.data import nearest

NEW = "new"  # of a `[stage.<name>]`: it is no change of one below
HOW = "a new stage is written [[stage]], or says new = true in a file that changes others"


def name_stages(stages: Any, recipe: str, there: Collection[str] = (), known: Collection[str] = ()) -> Tree:
    """Return name -> table of the stages in `recipe`; a [[stage]] without a name has the next free number. `there`: the
    stages below; `known`: further names that are no new ones. RecipeError if they are no stages, for a new one whose
    name exists, and for a change of one that does not (if `there` or `known` has any)."""
    out: Tree = {}
    for name, stage in _list_tables(stages, there):
        if not isinstance(stage, dict):
            raise RecipeError("stage", f"{stage!r} in {recipe}: expected [[stage]] tables")
        new, at = isinstance(stages, list) or stage.get(NEW) is True, f"stage.{format_path((name,))}"
        if name in out:
            raise RecipeError("stage", f"two stages of {recipe} are called {name!r}: names are unique")
        if new and name in there:
            message = f"[[stage]] in {recipe} is a new stage, and there is one of that name: write [{at}] to change it"
            raise RecipeError(at, f'{message}; {REMOVE} = ["{at}"] takes it out, and ["stage"] all of them')
        if not new and (there or known) and name not in (*there, *known):
            raise RecipeError(at, f"no such stage below {recipe}; {nearest(name, [*there, *known])} ({HOW})")
        out[name] = {k: v for k, v in stage.items() if k != "name" and (k != NEW or v is not True)}
    return out


def read_stages(own: Mapping[str, Any], recipe: str, below: Mapping[str, Any]) -> tuple[Tree, dict[str, str]]:
    """Return (name -> table, name -> before which other it belongs) of the stages in the table `own` of a recipe;
    `below`: the stages of the recipe that it extends. RecipeError."""
    gone = list_removed(own)
    taken = [path[1] for path in gone if path[0] == "stage" and len(path) == 2]
    there = [] if ("stage",) in gone else [name for name in below if name not in taken]
    stages = name_stages(own["stage"], recipe, there, taken if there else ())
    places = {name: stage[PLACE] for name, stage in stages.items() if PLACE in stage}
    for name, before in places.items():
        if before not in (*there, *stages) and not there:
            message = f"{before!r}: nothing below {recipe} has stages, so those that it says are all"
            raise RecipeError(f"stage.{format_path((name,))}.{PLACE}", f"{message}; {nearest(str(before), stages)}")
    return {
        n: {k: v for k, v in stage.items() if k != PLACE}
        for n, stage in stages.items()
    }, places


def name_all(method: str, chain: Sequence[Mapping[str, Any]]) -> list[Tree]:
    """Return the tables of a method and of those that it extends, youngest first, with their stages by name instead of
    as TOML has them. RecipeError for a change of a stage that none of the older ones brings."""
    out, there = list[Tree](), list[str]()
    for one in reversed(chain):
        said = one.get("stage", {})
        for name in said if isinstance(said, dict) else ():
            if name not in there and not (isinstance(said[name], dict) and said[name].get(NEW) is True):
                message = f"the method {method} brings no such stage, and changes all of a base that sample: {HOW}"
                raise RecipeError(f"stage.{format_path((name,))}", message)
        named = name_stages(said, method, there)
        gone = [path for path in list_removed(one) if path[0] == "stage"]
        there = [n for n in there if ("stage",) not in gone and ("stage", n) not in gone] + list(named)
        out.append({**one, **({"stage": named} if named else {})})
    return out[::-1]


def _list_tables(stages: Any, there: Collection[str]) -> list[tuple[str, Any]]:
    """Return (name, table) in the order of the file."""
    if isinstance(stages, dict):
        return list(stages.items())
    tables = stages if isinstance(stages, list) else [stages]
    given = {str(stage["name"]) for stage in tables if isinstance(stage, dict) and "name" in stage}
    out = []
    for number, stage in enumerate(tables, len(there) + 1):
        free = next(str(n) for n in count(number) if str(n) not in (*there, *given))
        out.append((str(stage.get("name", free)) if isinstance(stage, dict) else "", stage))
    return out

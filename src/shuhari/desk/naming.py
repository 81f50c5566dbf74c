"""Find the recipe that a name on the command line means, or the nearest one. Recipes that a new user may want come
before those that measure published numbers or claims."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

from shuhari.config.library import find_recipe, list_names
from shuhari.config.named import NAMES
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import resolve_name

FIRST = ("baselines", "pretrained")  # families that are named first
NEAR = 0.6  # the least likeness of a name that is meant


def find_named(reference: str, sets: Sequence[str] = (), remove: Sequence[str] = ()) -> tuple[str, list[str]]:
    """Return (recipe, methods to lay over it) for a short name (`config.named`), the last part of a baseline's name
    (`ppo_cartpole`), or the full name of a recipe. RecipeError with the nearest name if there is none."""
    found, methods = resolve_name(reference, sets, remove)
    place = Path(found)
    if methods or "," in found or place.suffix or place.exists() or find_recipe(found) is not None:
        return found, methods
    names = list_names()
    last = found.lower().replace("-", "_")
    if meant := [f"{family}/{last}" for family in FIRST if f"{family}/{last}" in names]:
        if len(meant) == 1:
            return meant[0], []
        raise RecipeError("", f"{reference!r} names several recipes: {' and '.join(meant)}: expected one of them")
    raise RecipeError("", f"no recipe {reference!r}; {_suggest(found, names)}")


def _suggest(name: str, names: Sequence[str]) -> str:
    """Return the nearest short name, recipe (compared by its last part if `name` has no family) or file in the same
    folder, the one in FIRST among equally near ones."""
    known = [*NAMES, *names, *(file.name for file in Path(name).parent.glob("*.toml"))]

    def order(one: str) -> tuple[float, bool]:
        part = one if "/" in name else one.rpartition("/")[2]
        return -SequenceMatcher(None, name.lower(), part).ratio(), "/" in one and not one.startswith(FIRST)

    from shuhari.lab.reproduce.targets import find_name  # only for a name that no recipe has

    if published := find_name(name):
        return f"it is a published number: `shuhari reproduce {published}`"
    if "/" not in name and (longer := [one for one in known if one.rpartition("/")[2].startswith(f"{name.lower()}_")]):
        return f"did you mean {min(longer, key=order)!r}?"
    best = min(known, key=order)
    close = -order(best)[0] >= NEAR
    return f"did you mean {best!r}?" if close else "`shuhari methods` lists those that there are"

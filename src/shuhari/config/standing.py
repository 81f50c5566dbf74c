"""The error for removing a setting that has its default value: there is nothing to remove.

To know defaults the components are made, and torch is loaded: this is used only once something is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shuhari.config.overlay import USE, RecipeError, look_up, split_path


def tell_standing(error: RecipeError, find_stages: Callable[[], Iterable[Mapping[str, Any]]]) -> RecipeError:
    """Return the error of a key that cannot be removed, or a clearer one if the key is a setting at its default in one
    of the stages (whole tables, before the removal)."""
    from shuhari.config.build import build_stage

    try:
        for table in find_stages() if error.where else ():
            defaults = build_stage(table).defaults
            if error.where in defaults:
                *above, last = split_path(error.where)
                holder = look_up(table, tuple(above))
                use = holder.get("use", holder.get("name")) if isinstance(holder, Mapping) else None
                use = use or USE.get(above[-1] if above else "", above[-1] if above else "the recipe")
                message = f"{defaults[error.where]!r} is the default of {last!r} in {use!r}, and no file sets it: "
                message += f"there is nothing to take out; --set {error.where}=.. changes it"
                return RecipeError(error.where, message)
    except RecipeError:  # of a recipe that is no whole one
        pass
    return error

"""The keys of a recipe and of a stage that are no tables, and their types. No torch."""

from __future__ import annotations

from typing import Annotated, Any

from shuhari.bounds import Bounds, Budget, Count, Length, Positive, Processes, Seed, Steps, bare, wrong
from shuhari.config.library import FORMAT
from shuhari.config.overlay import BUDGETS, RecipeError

KINDS: dict[str, Any] = {
    **dict.fromkeys(("name", "summary", "alone", "block", "stop_when"), str),
    **{"seed": Seed, "threads": Processes, "micro_batch": Count},
    **dict.fromkeys(BUDGETS, Budget),
    "seconds": Positive,
    "format": Annotated[int, Bounds(1, FORMAT)],
    **{"repeat": Length, "steps": Steps},
}


def read_scalar(key: str, value: Any, at: str) -> Any:
    """Return a value in the type of its key; a float such as 1e6 becomes a whole number if one is expected. RecipeError
    at the place `at`."""
    hint = KINDS[key]
    kinds, expected = {str: (str, "a text"), int: (int, "a whole number"), float: (int | float, "a number")}[bare(hint)]
    value = int(value) if kinds is int and isinstance(value, float) and value.is_integer() else value
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise RecipeError(at, f"{value!r}: expected {expected}")
    if misfit := wrong(hint, value):
        raise RecipeError(at, f"{value!r}: {misfit}")
    return value

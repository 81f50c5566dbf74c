"""Finds and reads results of claims and cards of beds, packaged with the library or in a clone. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from shuhari.config.library import Method, list_recipes
from shuhari.config.overlay import RecipeError

RESULT = 2  # the format of results of claims


def list_methods() -> list[Method]:
    """Return `list_recipes` with the verdicts of their claims; ten times slower."""
    return [_add_verdict(m) for m in list_recipes()]


def find_results(of: str = "claims") -> Path:
    """Return the folder of results of claims: the packaged one, or results/claims of a clone."""
    root = Path(str(resources.files("shuhari")))
    inside = root / f"{of}_data"
    return inside if inside.is_dir() else root.parents[1] / "results" / of


def find_cards() -> Path:
    """Return the folder of beds' cards."""
    return find_results("beds")


def read_result(name: str, at: Path | None = None) -> dict[str, Any] | None:
    """Read the result of a method's claim; None if it has not been measured. Raises RecipeError if it cannot be
    read."""

    def refuse(found: Any) -> str:
        return "" if found["format"] == RESULT else f"format {found['format']!r}, not {RESULT}"

    return read_json((at or find_results()) / f"{name}.json", "the result of a claim", refuse)


def read_json(path: Path, called: str, refuse: Callable[[Any], str]) -> dict[str, Any] | None:
    """Read a stored result; None if there is none. `called`: what it should be, for the error; refuse: (contents) ->
    what is wrong with them, "" if nothing. Raises RecipeError if it cannot be read."""
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if wrong := refuse(found):
            raise ValueError(wrong)
    except (ValueError, TypeError, KeyError) as error:
        raise RecipeError("", f"{path} is not {called} ({error}): move it away") from None
    return found


def _add_verdict(method: Method) -> Method:
    try:
        kept = read_result(method.name)
    except RecipeError as error:
        return replace(method, problem=str(error))
    return method if kept is None else replace(method, verdict=kept["verdict"], stale=kept.get("stale", ""))

"""Finds and reads results of claims and cards of beds, packaged with the library or in a clone. No torch."""

from __future__ import annotations

import json
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
    path = (at or find_results()) / f"{name}.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        if found is not None and found["format"] != RESULT:
            raise ValueError(f"format {found['format']!r}, not {RESULT}")
    except (ValueError, TypeError, KeyError) as error:
        raise RecipeError("", f"{path} is not the result of a claim ({error}): move it away") from None
    return found


def _add_verdict(method: Method) -> Method:
    try:
        kept = read_result(method.name)
    except RecipeError as error:
        return replace(method, problem=str(error))
    return method if kept is None else replace(method, verdict=kept["verdict"], stale=kept.get("stale", ""))

"""Results of claims and cards of beds, as the package brings them or a clone has them: found, and read. No torch."""

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
    """`list_recipes`, with the verdicts of their claims, which takes ten times as long."""
    return [_add_verdict(m) for m in list_recipes()]


def find_results(of: str = "claims") -> Path:
    """Where results of claims lie: what the package brings, or results/claims of a clone."""
    root = Path(str(resources.files("shuhari")))
    inside = root / f"{of}_data"
    return inside if inside.is_dir() else root.parents[1] / "results" / of


def find_cards() -> Path:
    """Where cards of beds lie."""
    return find_results("beds")


def read_result(name: str, at: Path | None = None) -> dict[str, Any] | None:
    """The result of a method's claim, None where it has not been measured. RecipeError where it cannot be read."""
    path = (at or find_results()) / f"{name}.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        if found is not None and found["format"] != RESULT:
            raise ValueError(f"format {found['format']!r}, not {RESULT}")
    except (ValueError, TypeError, KeyError) as error:
        raise RecipeError("", f"{path} is no result of a claim ({error}): move it away") from None
    return found


def _add_verdict(method: Method) -> Method:
    try:
        kept = read_result(method.name)
    except RecipeError as error:
        return replace(method, problem=str(error))
    return method if kept is None else replace(method, verdict=kept["verdict"], stale=kept.get("stale", ""))

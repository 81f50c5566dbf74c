"""Shared by `eval` and `compare`: finding a run, measuring it again with problems as notes, and intervals as cells.

Runs are opened read-only; nothing is stored in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shuhari.desk.cli.text import format_number, note

if TYPE_CHECKING:
    from shuhari.loop.measuring import Measured

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def format_interval(low: float | None, high: float | None) -> str:
    """Return an interval as a cell; a dash if there is none."""
    return "-" if low is None or high is None or low != low else f"[{format_number(low)}, {format_number(high)}]"


def measure_run(
    path: Path, step: int | None, settings: Mapping[str, Any], tasks: dict[str, Any] | None = None, **more: Any
) -> Measured:
    """Run `loop.measuring.measure`, printing problems as notes; an unknown split is a mistake in --split."""
    from shuhari.config.overlay import RecipeError
    from shuhari.loop.measuring import measure

    try:
        found = measure(path, step, settings, tasks, **more)
    except RecipeError as error:
        if error.where != "evaluate.split" or "split" not in settings:
            raise
        raise typer.BadParameter(error.problem, param_hint="--split") from None
    for problem in found.problems:
        note(problem)
    return found


def resolve_run(name: str) -> Path:
    """Return the folder of a run: a path, a name under runs/, or `latest`."""
    from shuhari.store import resolve

    return Path(resolve(name))

"""What a person looks at first of a run: held-out scores by chance, before and after, and its picture.

One place for the command line and for notebooks, so that both say the same. Nothing is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from shuhari.config.overlay import BUDGETS
from shuhari.desk.plot import plot_curves

ENDS = ("chance", "before", "after")


def read_ends(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """`chance`, `before` and `after` of a summary: name of a held-out score -> its value, of those that are numbers."""
    return {end: {k: float(x) for k, x in (summary.get(end) or {}).items() if _is_known(x)} for end in ENDS}


def tabulate_ends(summary: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """(heads, rows) of the held-out scores by chance, before and after training, with the change; without the columns
    that have no number. A number that is not known is None. No rows where nothing was measured."""
    ends = read_ends(summary)
    names = list(dict.fromkeys([*ends["before"], *ends["after"]]))
    shown = [end for end in ENDS if any(name in ends[end] for name in names)]
    both = any(name in ends["before"] and name in ends["after"] for name in names)
    rows = []
    for name in names:
        before, after = ends["before"].get(name), ends["after"].get(name)
        change = None if before is None or after is None else f"{after - before:+.4g}"
        rows.append((name, *(ends[end].get(name) for end in shown), *([change] if both else ())))
    return ("held-out", *shown, *(["change"] if both else ())), rows


def find_unit(recipe: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> str:
    """The column that the x of a run's picture is: what was spent of its budget, `step` where that counts steps."""
    unit = next((b for b in BUDGETS if b in recipe and f"spent/{b}" in columns), "steps")
    return "step" if unit == "steps" else f"spent/{unit}"


def draw(recipe: Mapping[str, Any], columns: Mapping[str, Sequence[Any]], summary: Mapping[str, Any], to: Any,
         kind: str = "png") -> None:  # fmt: skip
    """Draw a run's picture as PNG or SVG, into the file or the binary stream `to`. ValueError where there is nothing to
    draw."""
    ends = read_ends(summary)
    marks = {end: ends[end]["greedy"] for end in ("before", "chance") if "greedy" in ends[end]}
    plot_curves(columns, to, str(recipe.get("name", "")), find_unit(recipe, columns), marks, kind)


def _is_known(x: Any) -> bool:
    return isinstance(x, int | float) and math.isfinite(x)

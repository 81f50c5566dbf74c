"""Caps on the numbers of a recipe's table, for a test or for a rehearsal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def cap(table: Any, place: Sequence[str], most: int) -> None:
    """Cap a number (or each of a list) at a place of a table at `most`, in place; * stands for every key."""
    key, *rest = place
    for name in [key] if key != "*" else list(table):
        if not isinstance(table, Mapping) or name not in table:
            continue
        value = table[name]
        if rest:
            cap(value, rest, most)
        elif isinstance(value, list):
            table[name] = [min(x, most) if isinstance(x, int) else x for x in value]  # type: ignore[index]
        elif isinstance(value, int) and not isinstance(value, bool):
            table[name] = min(value, most)  # type: ignore[index]


def cap_buffer(table: dict[str, Any], *, lanes: bool, size: int = 4) -> None:
    """Shrink a buffer's table to a few rows, in place: few draws of `size`, four times that if lanes of environments
    fill it."""
    for inner in table.get("buffers", {}).values():
        if isinstance(inner, dict):
            cap_buffer(inner, lanes=lanes, size=size)
    for key, most in (("size", 4 * size if lanes else size), ("capacity", 64), ("warmup", 8), ("collect", 4),
                      ("draws", 8)):  # fmt: skip
        cap(table, (key,), most)

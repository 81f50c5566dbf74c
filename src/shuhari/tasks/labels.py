"""Labels of recorded answers: of a whole completion, or of each of its steps.

The rows are those of TRL's types "unpaired preference" and "stepwise supervision". Left out: ratings with other
meanings, such as the -1, 0, 1 of PRM800K's own files, where -1 is a wrong step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shuhari.tasks.reading import shorten

TEXTS, LABELS = ("steps", "completions"), "labels"  # columns: the texts of steps (the first that is there), and theirs
_TRUE = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


def read_label(value: Any, name: str = "label") -> bool | float:
    """Returns whether something is good: true or false, 1 or 0, or their texts, as a table has them; or how probably,
    a number between. Raises ValueError for anything else."""
    known = _TRUE.get(str(value).strip().casefold())
    if known is not None:
        return known
    try:
        share = math.nan if isinstance(value, list | tuple | dict) else float(value)
    except (TypeError, ValueError):
        share = math.nan
    if not 0 <= share <= 1:
        expected = "expected true or false (or 1 or 0), or a probability between"
        raise ValueError(f"`{name}` is {shorten(value)}: {expected}")
    return share


def list_steps(info: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Returns the steps of a row, texts, and their labels; both are empty unless it has lists of both."""
    if not isinstance(labels := info.get(LABELS), list | tuple):  # most rows, of any file
        return (), ()
    texts = next((x for name in TEXTS if isinstance(x := info.get(name), list | tuple)), None)
    return ((), ()) if texts is None else (tuple(texts), tuple(labels))


def read_steps(row: Mapping[str, Any]) -> tuple[bool | float | None, ...]:
    """Returns the labels of a row's steps, None for a step without one (null or -1); empty if it has no steps with
    labels. Raises ValueError for steps that are empty or no text, and for labels that do not fit them."""
    texts, labels = list_steps(row)
    if not texts and not labels:
        return ()
    name = next(name for name in TEXTS if isinstance(row.get(name), list | tuple))
    for i, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"step {i + 1} of `{name}` is {shorten(text)}: expected text that is not empty")
    if len(texts) != len(labels):
        raise ValueError(f"{len(texts)} `{name}` and {len(labels)} `{LABELS}`: expected a label for each step")
    known = tuple(None if y is None or (y == -1 and not isinstance(y, bool)) else read_label(y, LABELS) for y in labels)
    if all(y is None for y in known):
        raise ValueError(f"no step of `{name}` has a label: expected one at least that is true, false or between")
    return known

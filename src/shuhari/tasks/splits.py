"""The splits of a data set, by their usual names. Held-out evaluation uses `test`; if a data set has none, its
`validation` (or `dev`, ...) is used.

Left out: splits by content (`source.is_held_out`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

NAMES = {  # the requested split -> its names in data sets
    "train": ("train", "training"),
    "test": ("test", "testing", "validation", "valid", "val", "dev", "eval", "evaluation", "holdout", "held-out"),
    "validation": ("validation", "valid", "val", "dev", "eval", "evaluation"),
}
KNOWN = {
    **dict.fromkeys(NAMES["validation"], "validation"),
    **dict.fromkeys(NAMES["test"][:2], "test"),
    **dict.fromkeys(NAMES["train"], "train"),
}
_PART = re.compile(r"[-_.](?=[0-9]|of[-_.])")


def name_split(stem: str) -> str:
    """Returns the split that the name of a file means: `train` for `train-00000-of-00002`; any other name itself."""
    name = _PART.split(stem)[0]
    return KNOWN.get(name.casefold(), name)


def find_split(asked: str, there: Collection[str]) -> str:
    """Returns a data set's name for the requested split: that name, else a synonym; "" if it has none."""
    if asked in there:
        return asked
    folded = {name.casefold(): name for name in there}
    return next((folded[name] for name in NAMES.get(asked, (asked.casefold(),)) if name in folded), "")


def describe_unused(there: Iterable[str], asked: Iterable[str], counts: Mapping[str, int]) -> str:
    """Describes the splits of a data set that are not used; "" if all are."""
    there = list(there)
    used = {find_split(split, there) for split in asked}
    left = [f"{name!r} ({counts[name]} row{'s' * (counts[name] != 1)})" for name in there if name not in used]
    if not left:
        return ""
    return f"nothing here reads its split{'s' * (len(left) > 1)} {' and '.join(left)}"

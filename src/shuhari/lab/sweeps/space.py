"""What a sweep varies: `key=low..high`, `key=log low..high`, `key=[a, b, c]`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shuhari.config.overlay import RecipeError, parse_value

_RANGE = re.compile(r"^\s*(log\s+)?(\S+?)\s*\.\.\s*(\S+)\s*$")
FORMS = "expected LOW..HIGH, log LOW..HIGH, or a list such as [1, 2, 4]"


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; whole ones if both are; `log`: uniform in the logarithm."""

    low: float | int
    high: float | int
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __str__(self) -> str:
        return f"{'log ' if self.log else ''}{self.low!r}..{self.high!r}"


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"[{', '.join(map(repr, self.values))}]"


Space = Mapping[str, Range | Choice]


def read_space(texts: Iterable[str]) -> dict[str, Range | Choice]:
    """Return setting -> what it may be, of texts `key=...`. Raises RecipeError naming the text and what is expected."""
    out: dict[str, Range | Choice] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise RecipeError("--over", f"{text!r}: expected KEY=..., such as part.policy.optimiser.lr=log 1e-5..1e-2")
        if key in out:
            raise RecipeError("--over", f"{key} is given twice")
        out[key] = _read_range(key, match) if (match := _RANGE.match(value)) else _read_choice(key, value)
    if not out:
        raise RecipeError("--over", f"nothing to vary: {FORMS}, as --over KEY=...")
    return out


def _read_range(key: str, match: re.Match[str]) -> Range:
    low, high = parse_value(match[2]), parse_value(match[3])
    for end in (low, high):
        if not isinstance(end, int | float) or isinstance(end, bool):
            raise RecipeError("--over", f"{key}: {end!r} is no number: {FORMS}")
    log = bool(match[1])
    if low >= high or (log and low <= 0):
        above = " above 0" if log else ""
        raise RecipeError("--over", f"{key}: from {low!r} to {high!r}: expected a smaller number{above} first")
    whole = isinstance(low, int) and isinstance(high, int)
    return Range(low, high, log) if whole else Range(float(low), float(high), log)


def _read_choice(key: str, value: str) -> Choice:
    found = parse_value(value.strip())
    if not isinstance(found, list) or len(found) < 2:
        raise RecipeError("--over", f"{key}={value.strip()}: {FORMS}, of two values or more")
    return Choice(tuple(found))

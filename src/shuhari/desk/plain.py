"""Values as JSON has them (a number that is not finite is null), and as TOML writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any


def to_json(value: Any) -> bytes:
    """JSON of plain values, dataclasses, arrays and paths; text is escaped to ASCII."""
    try:
        return json.dumps(value, allow_nan=False, default=read_plain, separators=(",", ":")).encode()
    except ValueError:  # of NaN and infinities
        return json.dumps(to_finite(value, read_plain), allow_nan=False, separators=(",", ":")).encode()


def to_finite(value: Any, read: Callable[[Any], Any] | None = None) -> Any:
    """The same, None for each number that is not finite. read: what is made of values that JSON has not, such as
    `read_plain`; without it they stay."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(k): to_finite(v, read) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_finite(v, read) for v in value]
    return value if read is None or isinstance(value, str | int | bool | None) else to_finite(read(value), read)


def read_plain(value: Any) -> Any:
    """Arrays and dataclasses in lists and mappings, anything else as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


def format_value(value: Any) -> str:
    """A value much as TOML writes it."""
    if hasattr(value, "__dataclass_fields__"):
        value = asdict(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {format_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(format_value, value)) + "]"
    if value is None:
        return "(not set)"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)

"""Values as JSON (numbers that are not finite become null), and in TOML's notation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any


def to_json(value: Any) -> bytes:
    """Return JSON of plain values, dataclasses, arrays and paths; text is escaped to ASCII."""
    try:
        return json.dumps(value, allow_nan=False, default=read_plain, separators=(",", ":")).encode()
    except ValueError:  # NaN or infinity
        return json.dumps(to_finite(value, read_plain), allow_nan=False, separators=(",", ":")).encode()


def to_finite(value: Any, read: Callable[[Any], Any] | None = None) -> Any:
    """Replace each number that is not finite by None. read: converts values that JSON does not have, such as
    `read_plain`; without it they stay."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(k): to_finite(v, read) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_finite(v, read) for v in value]
    return value if read is None or isinstance(value, str | int | bool | None) else to_finite(read(value), read)


def read_plain(value: Any) -> Any:
    """Convert arrays and dataclasses to lists and mappings, anything else to text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


def format_value(value: Any) -> str:
    """Return a value much as TOML writes it."""
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

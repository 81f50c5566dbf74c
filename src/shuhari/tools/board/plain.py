"""Values as JSON that a browser reads: numbers that are not finite are null, text is escaped to ASCII."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any


def to_json(value: Any) -> bytes:
    """JSON of plain values, dataclasses, arrays and paths."""
    try:
        return json.dumps(value, allow_nan=False, default=_read, separators=(",", ":")).encode()
    except ValueError:  # of NaN and infinities
        return json.dumps(to_finite(value), allow_nan=False, separators=(",", ":")).encode()


def to_finite(value: Any) -> Any:
    """The same in plain values, None for each number that is not finite."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(k): to_finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_finite(v) for v in value]
    return value if isinstance(value, str | int | bool | None) else to_finite(_read(value))


def _read(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)

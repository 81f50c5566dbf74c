"""What a view gives that is no JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """The bytes of a file, and what kind of file it is, such as "image/png"."""

    data: bytes
    kind: str

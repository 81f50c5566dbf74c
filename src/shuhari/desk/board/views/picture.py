"""Results of views that are not JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """The bytes of a file, and its media type, such as "image/png"."""

    data: bytes
    kind: str


@dataclass(frozen=True)
class Flow:
    """A file that is generated while it is sent, and its media type."""

    chunks: Iterator[bytes]
    kind: str

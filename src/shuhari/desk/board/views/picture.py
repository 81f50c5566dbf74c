"""What a view gives that is no JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """The bytes of a file, and what kind of file it is, such as "image/png"."""

    data: bytes
    kind: str


@dataclass(frozen=True)
class Flow:
    """A file that is made while it is sent, and what kind of file it is."""

    chunks: Iterator[bytes]
    kind: str

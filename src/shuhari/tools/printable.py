"""Text of unknown origin as it can be looked at."""

from __future__ import annotations


def make_printable(text: str, limit: int | None = None) -> str:
    """Make text of unknown origin safe for a terminal: control characters are spelled out, and it is cut at `limit`."""
    text = text if limit is None or len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)

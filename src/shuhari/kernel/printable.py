"""Safe display of text of unknown origin."""

from __future__ import annotations

from typing import Any


def make_printable(text: str, limit: int | None = None) -> str:
    """Make text of unknown origin safe for a terminal: control characters are spelled out, and it is cut at `limit`."""
    text = text if limit is None or len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def make_cell(value: Any) -> Any:
    """Return a value as a cell of CSV: a number as it is, nothing for None; text in one line, printable, and behind an
    apostrophe if a spreadsheet would take it for a formula."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = make_printable(value).replace("\n", "\\n")
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text

"""What parts one answer from another, or hides that it does: one list for all graders.

Text from a model is hostile, and lenient grading is learnt: readers of numbers and formulas skip what they do not know,
so that `12|13`, `12,`, `1_2` or 12 with a backspace behind it would pass for 12. What the truth has itself an answer
may have. Everything here is a search by plain expressions, linear in the text. Left out: what answers mean.
"""

from __future__ import annotations

import re
import unicodedata

CHOICE = re.compile(  # words, and marks between two
    r"\b(?:or|maybe|perhaps|possibly|either)\b|\\(?:vee|lor|mid)(?![a-zA-Z])|[0-9)}\]] ?\|", re.IGNORECASE
)
ENDS = ",;|/&_°~…"  # with these no answer begins or ends, unless the truth does
DOTS = ".."
_JOINED = re.compile(r"[0-9]_|_[0-9]")  # Python reads 1_2 as 12
_WHITE = "\t\n\r"


def stands_alone(text: str, truth: str) -> bool:
    """Whether nothing stands around, between or behind an answer that its truth has not: a separator at either end, a
    character that does not show (control characters, marks of direction, spaces of no width), digits joined by `_`."""
    text, truth = text.strip(), truth.strip()
    if any(text[:1] == c != truth[:1] or text[-1:] == c != truth[-1:] for c in ENDS):
        return False
    if text.endswith(DOTS) and not truth.endswith(DOTS):
        return False
    if _JOINED.search(text) and not _JOINED.search(truth):
        return False
    return not (find_hidden(text) - find_hidden(truth))


def find_hidden(text: str) -> set[str]:
    """The characters of a text that do not show, but for tabs and line ends."""
    return {c for c in set(text) if not c.isprintable() and c not in _WHITE and unicodedata.category(c) in ("Cc", "Cf")}

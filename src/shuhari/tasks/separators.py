"""Characters that separate answers, or hide that they do: one list for all graders.

Model output is untrusted, and RL learns to exploit lenient grading: readers of numbers and formulas skip what they do
not know, so that `12|13`, `12,`, `1_2` or 12 followed by a backspace would pass for 12. An answer may contain what the
truth contains. All searches are simple regular expressions, linear in the text. Left out: the meaning of answers.
"""

from __future__ import annotations

import re
import unicodedata

CHOICE = re.compile(  # words, and marks between two
    r"\b(?:or|maybe|perhaps|possibly|either)\b|\\(?:vee|lor|mid)(?![a-zA-Z])|[0-9)}\]] ?\|", re.IGNORECASE
)
ENDS = ",;|/&_°~…"  # no answer begins or ends with these, unless the truth does
DOTS = ".."
_JOINED = re.compile(r"[0-9]_|_[0-9]")  # Python reads 1_2 as 12
_WHITE = "\t\n\r"


def stands_alone(text: str, truth: str) -> bool:
    """Whether an answer has nothing around, between or after it that its truth does not have: a separator at either
    end, an invisible character (control characters, direction marks, zero-width spaces), digits joined by `_`."""
    text, truth = text.strip(), truth.strip()
    if any(text[:1] == c != truth[:1] or text[-1:] == c != truth[-1:] for c in ENDS):
        return False
    if text.endswith(DOTS) and not truth.endswith(DOTS):
        return False
    if _JOINED.search(text) and not _JOINED.search(truth):
        return False
    return not (find_hidden(text) - find_hidden(truth))


def find_hidden(text: str) -> set[str]:
    """Returns the invisible characters of a text, except tabs and line ends."""
    return {c for c in set(text) if not c.isprintable() and c not in _WHITE and unicodedata.category(c) in ("Cc", "Cf")}

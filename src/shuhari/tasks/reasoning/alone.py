"""Graders that hand an answer to the package's scorer where nothing else stands beside it.

These scorers skip what is no part of an answer, so words around it, and a second answer behind it, would go through.
Arguments and the grade are those of `grading`.
"""

from __future__ import annotations

import re
from typing import Any

from shuhari.tasks.reasoning.grading import Entry

_GRID = re.compile(r"[0-9](?:[ \t,]*+[0-9])*+", re.ASCII)  # in one way alone, so that it reads a line once
_STATED = re.compile(r"[a-z]{1,40} is (?:an? )?[a-z]{1,40}", re.ASCII)
_PRESSES = re.compile(r"[A-C](?:(?:\s*(?:→|->|,)\s*|\s*)[A-C])*", re.ASCII)


def grade_pushes(text: str, entry: Entry, generator: Any) -> float:
    """The package's scorer, for an answer of moves alone: it skips whatever else stands there."""
    return float(generator.score_answer(text, entry)) if re.fullmatch(r"[UDLR]{1,8192}", text.strip()) else 0.0


def grade_presses(text: str, entry: Entry, generator: Any) -> float:
    """The package's scorer, for a sequence of buttons alone: it reads every a, b and c, of words too."""
    return float(generator.score_answer(text, entry)) if _PRESSES.fullmatch(text.strip()) else 0.0


def grade_statements(text: str, entry: Entry, generator: Any) -> float:
    """The package's scorer, for as many statements `Zoey is a knight` as the truth has, and nothing else: it reads the
    words before a role, whatever stands around them."""
    found, truth = (_split_statements(t) for t in (text, entry["answer"]))
    if len(found) != len(truth) or not all(map(_STATED.fullmatch, found)):
        return 0.0
    return float(generator.score_answer(text, entry))


def _split_statements(text: str) -> list[str]:
    whole = text.strip().casefold().removesuffix(".").replace(" and ", ",").replace(".", ",").replace("\n", ",")
    return [" ".join(part.split()) for part in whole.split(",") if part.strip()]


def grade_digits(text: str, entry: Entry, generator: Any) -> float:
    """The package's scorer, for a grid of numbers alone: it skips whatever else stands there."""
    lines = text.strip().splitlines()
    whole = bool(lines) and all(_GRID.fullmatch(line.strip()) for line in lines)
    return float(generator.score_answer(text, entry)) if whole else 0.0

"""Graders that hand an answer to the package's scorer where nothing else stands beside it.

These scorers skip what is no part of an answer, so words around it, and a second answer behind it, would go through.
Arguments and the grade are those of `grading`.
"""

from __future__ import annotations

import re
from typing import Any

from shuhari.tasks.reasoning.grading import Entry

_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_GRID = re.compile(r"[0-9](?:[ \t,]*+[0-9])*+", re.ASCII)  # in one way alone, so that it reads a line once
_PUSHES = re.compile(r"[UDLR]{1,1000}", re.ASCII)
_LETTER = re.compile(r"([A-Z])[ \t]*=[ \t]*[0-9]", re.ASCII)
_STATED = re.compile(r"[a-z]{1,40} is (?:an? )?[a-z]{1,40}", re.ASCII)
_PRESSES = re.compile(r"[A-C](?:(?:\s*(?:→|->|,)\s*|\s*)[A-C])*", re.ASCII)


def grade_pushes(text: str, entry: Entry, generator: Any) -> float:
    """The package's scorer, for an answer of moves alone, of which the last one is the first that solves the puzzle: it
    skips whatever else stands there, and takes the same moves twice."""
    moves = text.strip()
    if not _PUSHES.fullmatch(moves) or generator.score_answer(moves, entry) != 1:
        return 0.0
    board = [list(line) for line in entry["metadata"]["gamestr"].replace(" ", "").strip().split("\n")]
    game = generator._Game(height=len(board), width=len(board[0]))
    game.load_puzzle_matrix(board)
    for move in moves[:-1]:
        game.player.update(key=move)
        if generator._is_solved(game.get_curr_state()):
            return 0.0
    return 1.0


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
    """Of one line or several, joined by commas, full stops and `and`. One that is empty shows a separator too many."""
    lines = text.strip().casefold().removesuffix(".").splitlines()
    whole = ",".join(line.strip().removesuffix(".").removesuffix(",") for line in lines if line.strip())
    for mark in (", and ", " and ", "."):
        whole = whole.replace(mark, ",")
    return [" ".join(part.split()) for part in whole.split(",")]


def grade_digits(text: str, entry: Entry, generator: Any) -> float:
    """The package's scorer, for the numbers of a grid of numbers alone: it skips whatever else stands there, a number
    with a comma behind it too."""
    lines = [line.strip() for line in text.strip().splitlines()]
    if not lines or not all(map(_GRID.fullmatch, lines)):
        return 0.0
    return float(generator.score_answer("\n".join(" ".join(_DIGITS.findall(line)) for line in lines), entry))


def grade_letters(text: str, entry: Entry, generator: Any) -> float:
    """The package's scorer, for one digit for each letter: it takes the last of several."""
    pairs = [_LETTER.fullmatch(pair.strip()) for pair in text.split(",")]
    letters = [pair[1] for pair in pairs if pair is not None]
    alone = len(letters) == len(pairs) == len(set(letters))
    return float(generator.score_answer(text, entry)) if alone else 0.0


def grade_words(text: str, entry: Entry, generator: Any) -> float:
    """The package's scorer, for as many words as there are: it does not look at those behind them."""
    alone = text.count(",") == len(entry["metadata"]["sorted_words"]) - 1
    return float(generator.score_answer(text, entry)) if alone else 0.0

"""Graders that use the package's scorer only if the answer contains nothing else.

These scorers skip what is no part of an answer, so that words around it, and a second answer after it, would pass.
Arguments and the grade are those of `grading`.
"""

from __future__ import annotations

import re
from typing import Any

from shuhari.tasks.reasoning.grading import Entry

_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_GRID = re.compile(r"[0-9](?:[ \t,]*+[0-9])*+", re.ASCII)  # unambiguous, so that a line is read in linear time
_PUSHES = re.compile(r"[UDLR]{1,1000}", re.ASCII)
_LETTER = re.compile(r"([A-Z])[ \t]*=[ \t]*[0-9]", re.ASCII)
_STATED = re.compile(r"[a-z]{1,40} is (?:an? )?[a-z]{1,40}", re.ASCII)
_PRESSES = re.compile(r"[A-C](?:(?:\s*(?:→|->|,)\s*|\s*)[A-C])*", re.ASCII)


def grade_pushes(text: str, entry: Entry, generator: Any) -> float:
    """Grades by the package's scorer, for an answer of moves only, whose last move is the first that solves the puzzle:
    the scorer skips other text, and accepts repeated moves."""
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
    """Grades by the package's scorer, for a sequence of buttons only: the scorer reads every a, b and c, also in
    words."""
    return float(generator.score_answer(text, entry)) if _PRESSES.fullmatch(text.strip()) else 0.0


def grade_statements(text: str, entry: Entry, generator: Any) -> float:
    """Grades by the package's scorer, for as many statements `Zoey is a knight` as the truth has, and nothing else: the
    scorer reads the words before a role, whatever surrounds them."""
    found, truth = (_split_statements(t) for t in (text, entry["answer"]))
    if len(found) != len(truth) or not all(map(_STATED.fullmatch, found)):
        return 0.0
    return float(generator.score_answer(text, entry))


def _split_statements(text: str) -> list[str]:
    """Splits one or several lines, joined by commas, full stops and `and`. An empty part shows an extra separator."""
    lines = text.strip().casefold().removesuffix(".").splitlines()
    whole = ",".join(line.strip().removesuffix(".").removesuffix(",") for line in lines if line.strip())
    for mark in (", and ", " and ", "."):
        whole = whole.replace(mark, ",")
    return [" ".join(part.split()) for part in whole.split(",")]


def grade_digits(text: str, entry: Entry, generator: Any) -> float:
    """Grades by the package's scorer, for only the numbers of a grid: the scorer skips other text, and a number with a
    comma after it."""
    lines = [line.strip() for line in text.strip().splitlines()]
    if not lines or not all(map(_GRID.fullmatch, lines)):
        return 0.0
    return float(generator.score_answer("\n".join(" ".join(_DIGITS.findall(line)) for line in lines), entry))


def grade_letters(text: str, entry: Entry, generator: Any) -> float:
    """Grades by the package's scorer, for one digit per letter: the scorer takes the last of several."""
    pairs = [_LETTER.fullmatch(pair.strip()) for pair in text.split(",")]
    letters = [pair[1] for pair in pairs if pair is not None]
    alone = len(letters) == len(pairs) == len(set(letters))
    return float(generator.score_answer(text, entry)) if alone else 0.0


def grade_words(text: str, entry: Entry, generator: Any) -> float:
    """Grades by the package's scorer, for the right number of words: the scorer ignores further ones."""
    alone = text.count(",") == len(entry["metadata"]["sorted_words"]) - 1
    return float(generator.score_answer(text, entry)) if alone else 0.0

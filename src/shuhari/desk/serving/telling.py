"""Turns tokens of rows into text: piece by piece for streams, and cut at stop strings.

Axes: `K` tokens of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from shuhari.data import Array

HALF = "\ufffd"  # replaces bytes that are no character, or not yet
LONGEST = 4  # tokens of a character, at most: each has a byte or more


@dataclass(frozen=True)
class Said:
    """A token: its id, its log-probability (None: for the first token of a text), and (id, log-probability) of the
    alternatives."""

    id: int
    logp: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Piece:
    """A token and the text that it adds at character `at` of an answer: "" for an end token, and for the first parts of
    a character, which comes with its last token."""

    said: Said
    text: str
    at: int


@dataclass
class Pieces:
    """The text that each new token adds, so that the pieces together are the text of all tokens, and no piece holds
    part of a character. `decode`: [K] ids -> text."""

    decode: Callable[[Array], str]
    ids: list[int] = field(default_factory=list)
    base: int = 0  # tokens before it are not decoded again; from there to `read` they are context
    read: int = 0  # tokens whose text was returned

    def add(self, token: int) -> str:
        """Add a token, and return the text that is now complete."""
        self.ids.append(token)
        text = self._decode(self.base, len(self.ids))
        end = len(self.ids) if not text.endswith(HALF) else self._find_settled(text)
        return self._take(end)

    def rest(self) -> str:
        """Return the text that was held back."""
        return self._take(len(self.ids))

    def _find_settled(self, text: str) -> int:
        """Return the number of tokens up to the end of a character, if the last one may be incomplete: the text can be
        split there."""
        n = len(self.ids)
        for cut in range(n - 1, max(self.read, n - LONGEST), -1):
            if self._decode(self.base, cut) + self._decode(cut, n) == text:
                return cut
        return self.read

    def _take(self, end: int) -> str:
        if end == self.read:
            return ""
        before, now = self._decode(self.base, self.read), self._decode(self.base, end)
        self.base, self.read = self.read, end
        return now[len(before) :]

    def _decode(self, a: int, z: int) -> str:
        return self.decode(np.array(self.ids[a:z], np.int32)) if z > a else ""


@dataclass
class Telling:
    """One answer as text. It ends before the first stop string; a possible start of one is held back until decided."""

    decode: Callable[[Array], str]
    stops: Sequence[str] = ()
    count: int = 0  # tokens so far
    cut: bool = False  # whether a stop string ended it
    _text: str = ""
    _held: list[Piece] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pieces = Pieces(self.decode)
        self._longest = max(map(len, self.stops), default=0)

    def add(self, tokens: Sequence[Said], *, last: bool = False) -> list[Piece]:
        """Add tokens, and return the pieces that are decided; with `last` all that are left."""
        out: list[Piece] = []
        for i, said in enumerate(tokens):
            self.count += 1
            text = self._pieces.add(said.id)
            if last and i == len(tokens) - 1:
                text += self._pieces.rest()
            out += self._release(Piece(said, text, len(self._text)))
        if last:
            out += self._held
            self._held = []
        return out

    def _release(self, piece: Piece) -> list[Piece]:
        if self.cut:
            return []
        start = max(0, len(self._text) - self._longest)
        self._text += piece.text
        self._held.append(piece)
        where = [at for stop in self.stops if (at := self._text.find(stop, start)) >= 0]
        if where:
            self.cut, end = True, min(where)
            kept = [p for p in self._held if p.at < end]
            self._held = []
            return [Piece(p.said, p.text[: end - p.at], p.at) for p in kept]
        end = len(self._text) - self._find_beginning()
        out = []
        while self._held and self._held[0].at + len(self._held[0].text) <= end:
            out.append(self._held.pop(0))
        return out

    def _find_beginning(self) -> int:
        """Return how many of the last characters may begin a stop string."""
        for n in range(min(self._longest - 1, len(self._text)), 0, -1):
            if any(stop.startswith(self._text[-n:]) for stop in self.stops if len(stop) > n):
                return n
        return 0

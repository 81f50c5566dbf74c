"""A game of two policies with hidden information, in which the environment says who is at turn.

The hider names one of the places. The seeker, who sees nothing of that, guesses until he is right or has guessed three
times; after a wrong guess he may say `?`, and then the hider, to whom alone the place is shown again, must say whether
it lies before (`<`) or behind (`>`) the last guess. To find it pays 1, at once .5 more (`quick`, which most rounds are
never paid); a truthful hint pays `honest`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shuhari.data import Problem, Status, Step, Whole
from shuhari.tasks.source import Generated

GUESSES = 3


@dataclass
class Pennies:
    """Rounds of the game on so many places."""

    places: int = 4
    stamps = ("reward/found", "reward/quick", "reward/honest")

    @property
    def alphabet(self) -> str:
        return "hs:.?<>" + "".join(map(str, range(self.places)))

    def problems(self, split: str) -> Generated:
        return Generated(lambda i: Problem("pennies", f"{split}{i}", "h:"))

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        return {}  # all is paid on the way

    def environment(self, problem: Problem) -> Round:
        return Round(self.places)

    def spaces(self) -> None:
        return None


class Round:
    """One round. What is said that is no move is the end of it."""

    def __init__(self, places: int) -> None:
        self.places, self.hidden, self.last, self.guesses, self.hinting = places, -1, -1, 0, False

    def turn(self) -> str:
        return "hider" if self.hidden < 0 or self.hinting else "seeker"

    def reset(self, problem: Problem) -> str:
        return str(problem.prompt)

    def step(self, said: str) -> tuple[Any, Mapping[str, float], Status | None]:
        if self.hidden < 0:
            return self._hide(said)
        return self._hint(said) if self.hinting else self._guess(said)

    def _hide(self, said: str) -> tuple[Any, Mapping[str, float], Status | None]:
        if not self._is_place(said):
            return "", {}, Status.FINISHED
        self.hidden = int(said)
        return Whole("s:"), {}, None

    def _guess(self, said: str) -> tuple[Any, Mapping[str, float], Status | None]:
        if said == "?" and self.last >= 0:
            self.hinting = True
            return Whole(f"h:{self.hidden}.{self.last}"), {}, None
        self.guesses += 1
        if not self._is_place(said):
            return "", {}, Status.FINISHED
        if int(said) == self.hidden:
            quick = {"quick": 0.5} if self.guesses == 1 else {}
            return "", {"found": 1.0, **quick}, Status.FINISHED
        self.last = int(said)
        return Whole(f"s:{said}."), {}, Status.FINISHED if self.guesses == GUESSES else None

    def _hint(self, said: str) -> tuple[Any, Mapping[str, float], Status | None]:
        self.hinting = False
        truth = "<" if self.hidden < self.last else ">"
        return Whole(f"s:{self.last}{said}"), {"honest": float(said == truth)}, None

    def _is_place(self, said: str) -> bool:
        return said.isdecimal() and len(said) == 1 and int(said) < self.places

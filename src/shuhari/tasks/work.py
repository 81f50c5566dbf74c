"""Sums worked step by step, with slips, rechecks and, after `;`, the answer: `7-5+6=` -> `-5=2?2+6=8;8`.

A step of the work is a term, `=` and the running sum; each `?` after it is a recheck, which repeats the sum. The
problems are those of `chain`. Only the answer is graded, so rechecks cost tokens and pay only if they correct slips.
Demonstrations set how often the work slips, rechecks, corrects and gets stuck, and so the policy's behaviour after
imitation. Settings alone give padded answers, localised errors, rechecks that pay only on long problems, endless loops,
and answers with and without work: see the recipes `beds/work/...`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from operator import eq
from typing import Annotated, Any, Literal

from shuhari.bounds import Bounds, Count, Length, ProperShare, Seed, Share, check
from shuhari.data import Problem, Step
from shuhari.kernel.registry import register
from shuhari.tasks.chain import Chain
from shuhari.tasks.source import Splits, Stream, answer_text

HIGHEST = 9  # every running sum is one digit


@register("task", "work")
@dataclass
class Work:
    """Sums worked out step by step, with slips, rechecks (`?`) and, after `;`, the answer: `7-5+6=` -> `-5=2?2+6=8;8`.

    Every running sum is one digit. An answer is right if it ends in `;` and the answer, so truncated work is wrong, and
    an answer without work is right too. The problems and their split are those of `chain`. In demonstrations a sum of 0
    stays 0 if it slips, and sums that leave 0..9 are clamped. `info`: `terms`, their number. Raises ValueError for
    settings that do not fit together.
    """

    terms: Annotated[int, Bounds(2, 64)] = 4
    """Largest number of terms; more make longer answers and harder problems."""
    least: Annotated[int, Bounds(2, 64, off=0)] = 0
    """Smallest number of terms, drawn uniformly from here to `terms`; 0 gives every problem `terms`."""
    template: Literal["", "w", "d"] = ""
    """Letter before the prompt, `w` or `d`, that distinguishes two of these tasks in a `mixture`; empty adds none."""
    bare: Share = 0.0
    """Probability that a demonstration has no work, but `;` and a digit."""
    guess: Share = 0.15
    """Probability that the digit of a demonstration without work is right."""
    slip: Share = 0.25
    """Probability that a demonstrated sum is one too small; the work continues from the written sum."""
    recheck: Share = 0.0
    """Probability of one more recheck of a demonstrated step."""
    rechecks: Count = 5
    """Largest number of rechecks of one step."""
    fix: Share = 0.8
    """Probability that a recheck corrects a wrong sum; a right sum stays right."""
    loop: Share = 0.0
    """Probability that a demonstration gets stuck at one step: it rechecks up to `cap` characters and never answers."""
    cap: Length = 36
    """Length of a demonstration that is stuck, in characters."""
    test_fraction: ProperShare = 1 / 16
    """Share of all possible problems that is held out for testing, by a hash of their content; training never draws
    them."""
    test_size: Length = 256
    """Number of problems in the test split, no two alike; fewer if the task has no more."""
    seed: Seed = 0
    """Seed of the drawn problems and demonstrations; which problems are held out does not depend on it. In a recipe it
    is the run's seed unless set."""
    stamps = ("reward/score",)

    def __post_init__(self) -> None:
        check(self)
        if self.least > self.terms:
            raise ValueError(f"work: least is {self.least}: expected at most terms, which is {self.terms}")
        longest = 4 * (self.terms - 1)
        if self.loop and self.cap <= longest:
            expected = f"more than the {longest} characters of the work without rechecks, as loop is above 0"
            raise ValueError(f"work: cap is {self.cap}: expected {expected}")

    @property
    def alphabet(self) -> str:
        """The characters of prompts and answers."""
        return f"0123456789+-=?;{self.template}"

    @cached_property
    def problems(self) -> Splits:
        sums = Chain(self.terms, self.least, test_fraction=self.test_fraction, seed=self.seed).problems

        def make(split: str, index: int) -> tuple[str, Problem]:
            content, of = sums.item(split, index)
            prompt, answer = f"{self.template}{content}=", f";{of.answer!s}"
            shown = self._demonstrate(content, answer, Stream("work", self.seed, split, index))
            return content, Problem("work", f"{self.template}{content}", prompt, answer, shown, of.info)

        return Splits(make, self.test_size)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0} if the text from the last `;` on is the answer, else 0.0."""
        return {"score": float("".join(answer_text(steps).rpartition(";")[1:]) == problem.answer)}

    def first_wrong(self, problem: Problem, text: str) -> int | None:
        """Returns the position of the first character that no right work has there: len(text) if it ends too early,
        None if it is right. Right work is any number of right steps in order, rechecked or not, and the answer."""
        at = 0
        for step in _steps(problem.id.removeprefix(self.template)):
            if text[at : at + 1] == ";":
                break
            at += (same := _agree(text[at:], step))
            if same < len(step):
                return at
            while (same := _agree(text[at:], f"?{step[-1]}")) == 2:
                at += same
            if same:
                return at + same
        same = _agree(text[at:], str(problem.answer))
        return None if text[at:] == problem.answer else at + same

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    def _demonstrate(self, content: str, answer: str, stream: Stream) -> str:
        if self.bare and stream.uniform() < self.bare:
            miss = 1 + stream.below(HIGHEST)
            return answer if stream.uniform() < self.guess else f";{(int(answer[1:]) + miss) % (HIGHEST + 1)}"
        total, *terms = _terms(content)
        stuck, text = stream.below(len(terms)) if stream.uniform() < self.loop else -1, ""
        for i, term in enumerate(terms):
            right = _clip(total + term)
            total = _clip(right - (stream.uniform() < self.slip))
            text += f"{term:+d}={total}"
            if i == stuck:
                return (text + f"?{total}" * self.cap)[: self.cap]
            for _ in range(self.rechecks):
                if stream.uniform() >= self.recheck:
                    break
                total = right if stream.uniform() < self.fix else total
                text += f"?{total}"
        return f"{text};{total}"


def _terms(content: str) -> list[int]:
    """Returns the signed terms of a sum: `7-5+6` -> 7, -5, 6."""
    return [int(term) for term in re.findall(r"[+-]?\d", content)]


def _steps(content: str) -> Iterator[str]:
    """Yields the right steps of a sum without rechecks: `-5=2`, `+6=8`."""
    total, *terms = _terms(content)
    for term in terms:
        total += term
        yield f"{term:+d}={total}"


def _clip(total: int) -> int:
    return min(max(total, 0), HIGHEST)


def _agree(text: str, other: str) -> int:
    """Returns the length of the common beginning of two texts."""
    return sum(1 for _ in takewhile(bool, map(eq, text, other)))

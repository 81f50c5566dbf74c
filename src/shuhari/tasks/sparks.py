"""Sums worked out step by step, some of which need a rare first token that spoils the others.

Models tokens that are seldom tried, mostly punished and sometimes needed: `7+2=` -> `+2=9`, and `7-5+6=` ->
`!-5=2+6=8`. Graded are the text after the last `=`, and that a `!` comes first exactly if it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any

from shuhari.bounds import Bounds, Length, ProperShare, Seed, Share, check
from shuhari.data import Problem, Step
from shuhari.kernel.registry import register
from shuhari.tasks.source import Splits, Stream, answer_text, draw_item

SPARK = "!"


@register("task", "sparks")
@dataclass
class Sparks:
    """Sums worked out step by step, some of which need a rare first token: `7+2=` -> `+2=9`, but `7-5+6=` ->
    `!-5=2+6=8`.

    Right is the right number with a `!` in front exactly if the sum has a subtraction. Demonstrated work continues from
    the written sums and counts modulo 10, so no error cancels another. Graded besides `score`: `spark`, 1.0 if the
    answer begins with `!`. `info`: `terms`, their number.
    """

    terms: Annotated[int, Bounds(2, 16)] = 4
    """Number of terms in a sum."""
    minus: bool = False
    """Give each sum a subtraction, so that its answer needs `!` first; false gives none."""
    rare: Share = 0.05
    """Share of the demonstrations that begin with `!`, whatever the problem."""
    slip: Share = 0.25
    """Share of the demonstrated steps that are one too small."""
    test_fraction: ProperShare = 1 / 16
    """Share of all possible problems that is held out for testing, by a hash of their content; training never draws
    them."""
    test_size: Length = 256
    """Number of problems in the test split, no two alike; fewer if the task has no more."""
    seed: Seed = 0
    """Seed of the drawn problems and demonstrations; which problems are held out does not depend on it. In a recipe it
    is the run's seed unless set."""
    stamps = ("reward/score", "reward/spark")

    def __post_init__(self) -> None:
        check(self)

    @property
    def alphabet(self) -> str:
        """The characters of prompts and answers."""
        return f"0123456789+-={SPARK}"

    @cached_property
    def problems(self) -> Splits:
        return Splits(self._item, self.test_size)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0 for the right number, with or without a `!` before the work as the problem needs, else
        0.0; "spark": 1.0 after a `!`}."""
        text = answer_text(steps)
        spark = text.startswith(SPARK)
        right = text.rpartition("=")[2] == problem.answer
        return {"score": float(right and spark == self.minus), "spark": float(spark)}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    def _item(self, split: str, index: int) -> tuple[str, Problem]:
        stream = Stream("sparks", self.seed, self.minus, split, index)
        content, terms = draw_item(split, self.test_fraction, lambda: self._draw(stream), "sparks")
        spark = SPARK if stream.uniform() < self.rare else ""
        shown = work_out(terms, [stream.uniform() < self.slip for _ in terms])
        solution = spark + "".join(f"{t:+d}={s}" for t, s in zip(terms[1:], shown, strict=True))
        return content, Problem("sparks", content, f"{content}=", str(sum(terms)), solution, {"terms": len(terms)})

    def _draw(self, stream: Stream) -> tuple[str, list[int]]:
        """Returns the sum as text, and its signed terms: the differences of uniform running sums, which never fall
        without `minus`, and fall at least once with it."""
        totals = sorted(stream.below(10) for _ in range(self.terms))
        while self.minus and totals == sorted(totals):
            totals = [stream.below(10) for _ in range(self.terms)]
        terms = [b - a for a, b in pairwise([0, *totals])]
        return f"{terms[0]}{''.join(f'{t:+d}' for t in terms[1:])}", terms


def work_out(terms: Sequence[int], wrong: Sequence[bool]) -> list[int]:
    """Returns the running sums after each term but the first, modulo 10; one too small if `wrong`. The work continues
    from the written sums."""
    total, out = terms[0], []
    for term, error in zip(terms[1:], wrong[1:], strict=True):
        total = (total + term - error) % 10
        out.append(total)
    return out

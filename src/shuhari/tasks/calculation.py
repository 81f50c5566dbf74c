"""Random calculations as text, some of them memorised: `7-3*2=` -> `1`, exact values, a score for near answers.

Problems of the split `seen` are a fixed list that training draws again and again, as a benchmark that leaked into
pretraining; all other training problems, and those of `test`, are fresh. After RandomCalculation of "Reasoning or
Memorization? Unreliable Results of Reinforcement Learning Due to Data Contamination" (Wu et al. 2025, arXiv
2507.10532). Left out: squares, cubes and fractions as operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any

from shuhari.bounds import Bounds, Count, Length, ProperShare, Seed, Share, check
from shuhari.data import Problem, Step
from shuhari.kernel.registry import register
from shuhari.tasks.expressions import ExpressionError, Limits, evaluate
from shuhari.tasks.source import SPLITS, Generated, Listed, Stream, answer_text, check_split, draw_distinct, draw_item

SEEN = "seen"
CUTS = (0.4, 0.6, 0.8)  # shares of a question after which a text goes on with it
TINY = Fraction(1, 10**9)


@register("task", "calculation")
@dataclass
class Calculation:
    """Random expressions to be worked out, `7-3*2=` -> `1`, and a fixed list of some that training repeats.

    `score` is 1 for the exact value, else 0; `near` is 1 - min(|x - x*|, 1) / 2 - min(|x - x*| / |x*|, 1) / 2 for the
    answer x and the value x*, 0 for an answer that is no number, summed only if `[reward.weights]` names it. Answers
    may be fractions, as `-7/3`. The split `seen` has the repeated problems. Training problems have the task `seen` or
    `fresh`, and ids to match. Raises ValueError for settings that do not fit together.
    """

    operations: Annotated[int, Bounds(1, 20)] = 2
    """Number of operations of a fresh expression; more are harder."""
    high: Annotated[int, Bounds(1, 100)] = 9
    """Largest operand; the smallest is 0."""
    operators: str = "+-"
    """Operators that are drawn, some of `+-*/`; nothing is divided by 0."""
    seen: Count = 0
    """Number of problems of the split `seen`; 0 has none."""
    seen_operations: Annotated[int, Bounds(1, 20)] = 5
    """Number of operations of these; choose so many that they cannot be worked out, and must be remembered."""
    repeat: Share = 0.5
    """Share of the training problems that are of the split `seen`, if it has any."""
    continued: Share = 0.0
    """Share of these that begin with a part of the question (40, 60 or 80 %) and demonstrate the rest of it, with its
    answer: text in which the question itself is learnt."""
    slip: Share = 0.0
    """Share of demonstrations whose answer is wrong by 1; 0 demonstrates right answers."""
    test_fraction: ProperShare = 1 / 16
    """Share of all possible fresh problems that is held out for testing, by a hash of their content; training never
    draws them."""
    test_size: Length = 256
    """Number of problems in the test split, no two alike; fewer if the task has no more."""
    seed: Seed = 0
    """Seed of the drawn problems and demonstrations; which problems are held out does not depend on it. In a recipe it
    is the run's seed unless set."""
    stamps = ("reward/score", "reward/near")

    def __post_init__(self) -> None:
        check(self)
        if not self.operators or set(self.operators) - set("+-*/"):
            raise ValueError(f"calculation: operators are {self.operators!r}: expected some of '+-*/'")

    @property
    def alphabet(self) -> str:
        """The characters of prompts and answers."""
        return "".join(sorted({*"0123456789-/=", *self.operators}))

    def problems(self, split: str) -> Generated | Listed:
        known = (*SPLITS, SEEN) if self.seen else SPLITS
        if check_split(split, known) == SEEN:
            return self._seen
        return self._test if split == "test" else Generated(self._train)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0 for the exact value, else 0.0, "near": in [0, 1]}; the text of a question that goes on
        is right if all of it is."""
        text = answer_text(steps)
        rest, mark, told = text.rpartition("=")
        value = Fraction(problem.info["value"])
        if f"{rest}{mark}" != problem.info["rest"]:
            return {"score": 0.0, "near": 0.0}
        try:
            found = evaluate(told, Limits(length=32, depth=2, digits=12))
        except ExpressionError:
            return {"score": 0.0, "near": 0.0}
        plain = told.removeprefix("-").replace("/", "", 1).isdecimal()  # a number, no further calculation
        return {"score": float(plain and found == value), "near": float(find_nearness(found, value)) if plain else 0.0}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    @cached_property
    def _seen(self) -> Listed:
        def make(index: int) -> tuple[str, Problem]:
            stream = Stream("calculation", self.seed, SEEN, index)
            question = self._draw(stream, self.seen_operations)
            return question, self._make(question, SEEN, stream)

        return draw_distinct(make, self.seen)

    @cached_property
    def _test(self) -> Listed:
        return draw_distinct(lambda i: self._make_fresh("test", i), self.test_size)

    def _train(self, index: int) -> Problem:
        stream = Stream("calculation train", self.seed, index)
        if not self.seen or stream.uniform() >= self.repeat:
            return self._make_fresh("train", index)[1]
        question = str(self._seen[stream.below(len(self._seen.problems))].id).removeprefix(f"{SEEN}/")
        cut = CUTS[stream.below(len(CUTS))] if stream.uniform() < self.continued else 1.0
        return self._make(question, SEEN, stream, cut)

    def _make_fresh(self, split: str, index: int) -> tuple[str, Problem]:
        stream = Stream("calculation fresh", self.seed, split, index)

        def draw() -> tuple[str, str]:
            question = self._draw(stream, self.operations)
            return question, question

        _, question = draw_item(split, self.test_fraction, draw, "calculation")
        return question, self._make(question, "fresh", stream)

    def _draw(self, stream: Stream, operations: int) -> str:
        """Return a question, drawn until nothing is divided by 0."""
        while True:
            parts = [str(stream.below(self.high + 1))]
            for _ in range(operations):
                parts += [self.operators[stream.below(len(self.operators))], str(stream.below(self.high + 1))]
            question = "".join(parts)
            try:
                evaluate(question)
            except ExpressionError:
                continue
            return question

    def _make(self, question: str, task: str, stream: Stream, cut: float = 1.0) -> Problem:
        """Return the problem of a question, or of its first share `cut`, which goes on with the question."""
        value = evaluate(question)
        shown = value + (2 * stream.below(2) - 1 if stream.uniform() < self.slip else 0)
        at = round(cut * len(question))
        rest = f"{question[at:]}=" if cut < 1 else ""
        prompt = question[:at] if cut < 1 else f"{question}="
        name = question if cut == 1 else f"{question}:{at}"
        info = {"value": str(value), "rest": rest}
        return Problem(task, f"{task}/{name}", prompt, f"{rest}{value}", f"{rest}{shown}", info)


def find_nearness(found: Fraction, value: Fraction) -> Fraction:
    """Return 1 - min(|x - x*|, 1) / 2 - min(|x - x*| / (|x*| + 1e-9), 1) / 2, of an answer x and the value x*."""
    error = abs(found - value)
    return 1 - min(error, Fraction(1)) / 2 - min(error / (abs(value) + TINY), Fraction(1)) / 2

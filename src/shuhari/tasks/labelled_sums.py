"""Sums worked out in steps, each labelled right or wrong: `7-5+6=` -> `-5=2,?2,+6=8,;8`.

The problems are those of `chain`. A step is a term, `=` and the running sum; a recheck `?2`, which repeats the sum;
or the answer behind `;`. Any number of rechecks may stand anywhere, and only the answer is graded, so rechecks cost
tokens and are worth nothing. Demonstrations slip and recheck by the settings, and are also the rows from which a
process reward model learns (buffer `labelled`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from shuhari.bounds import Bounds, Count, Length, ProperShare, Seed, Share, check
from shuhari.data import Problem, Step
from shuhari.kernel.registry import register
from shuhari.tasks.chain import Chain
from shuhari.tasks.source import Splits, Stream, answer_text

SEPARATOR = ","


@register("task", "labelled_sums")
@dataclass
class LabelledSums:
    """Sums worked out in steps with a comma between two, and a label for each step: `7-5+6=` -> `-5=2,?2,+6=8,;8`.

    Every running sum is one digit, and an answer is right if it ends in `;` and the last sum. `?2` repeats the sum
    and changes nothing. `info`: `terms`, their number; `steps`, those of the demonstration; `labels`, whether the work
    is right up to each step.
    """

    terms: Annotated[int, Bounds(2, 64)] = 3
    """Number of terms; more make longer answers and harder problems."""
    slip: Share = 0.25
    """Probability that a demonstrated sum is one too small (a sum of 0 stays 0); the work continues from the written
    sum."""
    recheck: Share = 0.3
    """Probability of one more recheck after a demonstrated sum."""
    rechecks: Count = 3
    """Largest number of rechecks of one sum in a demonstration."""
    test_fraction: ProperShare = 0.25
    """Share of all possible problems that is held out for testing, by a hash of their content; training never draws
    them."""
    test_size: Length = 256
    """Number of problems in the test split, no two alike; fewer if the task has no more."""
    seed: Seed = 0
    """Seed of the drawn problems and demonstrations; which problems are held out does not depend on it. In a recipe it
    is the run's seed unless set."""
    stamps = ("reward/score", "reward/rechecks")

    def __post_init__(self) -> None:
        check(self)

    @property
    def alphabet(self) -> str:
        """The characters of prompts and answers."""
        return f"0123456789+-=?;{SEPARATOR}"

    @cached_property
    def problems(self) -> Splits:
        sums = Chain(self.terms, test_fraction=self.test_fraction, seed=self.seed).problems

        def make(split: str, index: int) -> tuple[str, Problem]:
            content, of = sums.item(split, index)
            steps, labels = self._work_out(content, Stream("labelled_sums", self.seed, split, index))
            info = {**of.info, "steps": steps, "labels": labels}
            return content, Problem("labelled_sums", content, of.prompt, of.answer, SEPARATOR.join(steps), info)

        return Splits(make, self.test_size)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns {"score": 1.0 if the text from the last `;` on is the answer, else 0.0, "rechecks": their number}."""
        text = answer_text(steps)
        right = "".join(text.rpartition(";")[1:]) == f";{problem.answer}"  # type: ignore[str-bytes-safe]
        return {"score": float(right), "rechecks": float(text.count("?"))}

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None

    def _work_out(self, content: str, stream: Stream) -> tuple[tuple[str, ...], tuple[bool, ...]]:
        """Returns the steps of a demonstration, and whether the work is right up to each of them."""
        total, *terms = [int(term) for term in re.findall(r"[+-]?\d", content)]
        right, steps, labels = total, list[str](), list[bool]()
        for term in terms:
            right += term
            total = min(max(total + term - (stream.uniform() < self.slip), 0), 9)
            steps.append(f"{term:+d}={total}")
            for _ in range(self.rechecks):
                if stream.uniform() >= self.recheck:
                    break
                steps.append(f"?{total}")
            labels += [total == right and all(labels)] * (len(steps) - len(labels))
        return (*steps, f";{total}"), (*labels, labels[-1])

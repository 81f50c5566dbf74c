"""Judges that are trained: whether the scores that an answer gives to candidates put the best one first.

Scores are the last list in brackets or braces, `[7, 5, 3]` or `\\boxed{7, 5, 3}`, one whole number for each candidate
in their order. Source: Liu et al. 2025, "Inference-Time Scaling for Generalist Reward Modeling", section 3. Left out:
scores with decimals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shuhari.bounds import Count, check
from shuhari.data import ContractError, Problem, Trajectory
from shuhari.kernel.registry import register
from shuhari.ports import Ctx
from shuhari.tasks.source import answer_text

CANDIDATES = "candidates"  # in a problem's `info`: their texts, or how many there are
_LIST = re.compile(r"[\[{]\s{0,9}([0-9]{1,6}(?:\s{0,9},\s{0,9}[0-9]{1,6})*)\s{0,9}[\]}]")


def read_scores(text: str, n: int) -> tuple[int, ...] | None:
    """Returns the n scores that a judgement ends with: the last list in it; None if it has none, or of another
    length."""
    found = _LIST.findall(text)
    scores = tuple(map(int, found[-1].split(","))) if found else ()
    return scores if len(scores) == n else None


def count_candidates(problem: Problem) -> int:
    """Returns the number of candidates of a problem. Raises ContractError for a problem without them."""
    given = problem.info.get(CANDIDATES)
    n = given if isinstance(given, int | float) else len(given) if isinstance(given, list | tuple) else 0
    if n != int(n) or n < 1:
        expected = "expected `candidates`, a list of texts or their number"
        raise ContractError(f"problem {problem.id!r} of {problem.task} has {CANDIDATES} {given!r:.60}: {expected}")
    return int(n)


def is_right(scores: Sequence[int] | None, answer: Any) -> bool:
    """Whether scores put the best candidate first, alone: `answer` is its number, from 1. Of a single candidate:
    whether its score is `answer`, 0 or 1. A tie for the first place is wrong, and so are no scores."""
    if not scores:
        return False
    if len(scores) == 1:
        return scores[0] == int(answer)
    best = int(answer) - 1
    return 0 <= best < len(scores) and all(scores[best] > x for j, x in enumerate(scores) if j != best)


@register("reward", "pointwise")
@dataclass
class Pointwise:
    """1 for a judgement whose scores put the best candidate first, alone, else 0.

    The problem's `answer` is the number of the best candidate, from 1, and `candidates` of its `info` lists them (or is
    their number); of a single candidate the answer is its label, 0 or 1, which the score must equal. A judgement
    without one score for each candidate, or with one out of range, gets 0: its form is its own doing. Samples without a
    decision are ungraded. Raises ContractError for a problem without candidates, or whose answer is no such number.
    """

    low: Count = 0
    """Smallest score; below it a judgement counts as wrong."""
    high: Count = 10
    """Largest score; above it a judgement counts as wrong."""
    name: str = "pointwise"
    """Name of the grade, so that its column is `reward/<name>`."""

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    def __post_init__(self) -> None:
        check(self)
        if self.low >= self.high:
            raise ValueError(f"pointwise: low is {self.low} and high is {self.high}: expected low < high")

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, Any] | None]:
        """Returns one grade per leaf."""
        return [
            self._grade(t, path)
            for t in group
            for path in t.paths()
        ]

    def _grade(self, t: Trajectory, path: Sequence[int]) -> Mapping[str, Any] | None:
        steps, problem = [t.steps[i] for i in path], t.request.problem
        if all(step.action is None for step in steps):
            return None
        n, answer = count_candidates(problem), str(problem.answer).strip()
        if not answer.isdecimal() or int(answer) > n:
            what = f"problem {problem.id!r} of {problem.task} has the answer {answer[:60]!r}"
            raise ContractError(f"{what}: expected the number of the best of {n} candidates")
        scores = read_scores(answer_text(steps), n)
        good = scores is not None and all(self.low <= x <= self.high for x in scores)
        return {self.name: float(good and is_right(scores, answer))}

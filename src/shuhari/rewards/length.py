"""A reward for shorter answers within a group: the length reward of Kimi k1.5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import ClassVar

from shuhari.bounds import check
from shuhari.data import Number, Trajectory, sum_reward
from shuhari.kernel.registry import register
from shuhari.ports import Ctx


@register("reward", "length")
@dataclass
class Length:
    """Kimi k1.5's length reward: within a group, short right answers gain and long answers lose (arXiv 2501.12599,
    section 2.3.3).

    The grade is weight x r, with r = 1/2 - (length - min) / (max - min) for a right answer and min(0, r) for a wrong
    one; 0 if all lengths in the group are equal. A length counts positions, including a forced prefix; min and max are
    over the graded answers of the group. Answers that `of` leaves ungraded are ungraded here. If `[reward.weights]` is
    given, it must name this reward too.
    """

    counts: ClassVar[bool] = False  # used in addition to another reward
    name: str = "length"
    """Name of the grade, so that its column is `reward/<name>`."""
    of: str = "score"
    """Name of the reward that decides whether an answer is right, such as the task's `score`."""
    solved: float = 1.0
    """Smallest grade of a right answer."""
    weight: Number = 1.0
    """Coefficient of the length reward; the paper turns it on after a warm-up, `{from = 0, to = 1, over = 1, after =
    100}`."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"reward/{self.of}",)

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, float] | None]:
        """Returns one grade per leaf, computed from the whole group."""
        answers = [
            self._answer(t, path)
            for t in group
            for path in t.paths()
        ]
        lengths = [n for n, grade in answers if grade is not None]
        least, spread = min(lengths, default=0), max(lengths, default=0) - min(lengths, default=0)
        grades: list[Mapping[str, float] | None] = []
        for n, grade in answers:
            r = 0.5 - (n - least) / spread if spread else 0.0
            right = grade is not None and grade >= self.solved
            grades.append(None if grade is None else {self.name: ctx.at(self.weight) * (r if right else min(0.0, r))})
        return grades

    def _answer(self, t: Trajectory, path: Sequence[int]) -> tuple[int, float | None]:
        steps = [t.steps[i] for i in path]
        grade = sum_reward(steps, self.of)
        return sum(len(s.mask) for s in steps if s.action is not None), None if isnan(grade) else grade

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

    It gives weight x r, r = 1/2 - (length - min) / (max - min) of a right answer, of a wrong one min(0, r); 0 where all
    of the group are as long. A length counts positions, a forced beginning included; min and max are over the graded
    answers of the group. What `of` leaves ungraded is ungraded here. Where `[reward.weights]` names rewards, name this
    one too.
    """

    counts: ClassVar[bool] = False  # beside another measure
    name: str = "length"
    """Name of the grade, so that its column is `reward/<name>`."""
    of: str = "score"
    """Name of the reward that decides whether an answer is right, such as the task's `score`."""
    solved: float = 1.0
    """Grade from which an answer counts as right."""
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
        """One grade a leaf, of the whole group at once."""
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

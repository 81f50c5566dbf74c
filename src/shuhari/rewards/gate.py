"""A reward that counts only if another passes: fluent, but only of a right answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from shuhari.bounds import check
from shuhari.data import Trajectory, sum_reward
from shuhari.kernel.registry import register
from shuhari.ports import Ctx


@register("reward", "gate")
@dataclass
class Gate:
    """The grade `of` an answer if its grade `gate` is at least `least`, else `otherwise`.

    Both are graded before: by the task, or by rewards that stand above this one. An answer that `gate` leaves ungraded
    is ungraded here, and so is one that passes and has no grade `of`. Give `of` the weight 0 in `[reward.weights]`, or
    it counts by itself too.
    """

    of: str
    """Name of the reward that counts if the gate is passed."""
    gate: str = "score"
    """Name of the reward that must be passed, such as the task's `score`."""
    least: float = 1.0
    """Smallest grade with which the gate is passed."""
    otherwise: float = 0.0
    """Grade of an answer that does not pass."""
    name: str = "gate"
    """Name of the grade, so that its column is `reward/<name>`."""

    def __post_init__(self) -> None:
        check(self)
        if self.name in (self.of, self.gate):
            raise ValueError(f"gate: name is {self.name!r}, a reward that it reads: expected another name")

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    @property
    def reads(self) -> tuple[str, ...]:
        return f"reward/{self.of}", f"reward/{self.gate}"

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, float] | None]:
        """Returns one grade per leaf."""
        leaves = [
            [t.steps[i] for i in path]
            for t in group
            for path in t.paths()
        ]
        return [self._grade(steps) for steps in leaves]

    def _grade(self, steps: Sequence[Any]) -> Mapping[str, float] | None:
        passed = sum_reward(steps, self.gate)
        if isnan(passed):
            return None
        grade = sum_reward(steps, self.of) if passed >= self.least else self.otherwise
        return None if isnan(grade) else {self.name: grade}

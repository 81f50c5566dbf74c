"""A context with parts made by hand, for the tests of collecting and evaluating: answers and grades are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shuhari import testing
from shuhari.data import EMPTY, Problem, Request, Sampling, Status, Step, Trajectory
from shuhari.tasks.source import Listed

Grade = Callable[[Problem, int], Any]  # (problem, sample) -> rewards by name, None, or an error to raise


class Graded:
    """`n` problems whose answers are graded by `grade`; a sample is known by the number in its step's info."""

    def __init__(self, grade: Grade, n: int = 4) -> None:
        self.grader, self.n = grade, n

    def problems(self, split: str) -> Listed:
        return Listed([Problem("told", str(i), float(i)) for i in range(self.n)])

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any] | None:
        given = self.grader(problem, int(steps[-1].info["sample"]))
        if isinstance(given, Exception):
            raise given
        return given

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> None:
        return None


class Samples:
    """Dense steps of one decision; keeps the requests that it saw. `status`: of (problem, sample)."""

    accepts: Mapping[str, Any] = EMPTY

    def __init__(
        self, status: Callable[[Problem, int], Status] = lambda p, j: Status.FINISHED, **reward: float
    ) -> None:
        self.status, self.reward, self.seen = status, reward, list[Request]()

    async def group(self, request: Request, ctx: Any) -> list[Trajectory]:
        self.seen.append(request)
        step = [
            Step.of(request.problem.prompt, 0, np.zeros(1, np.float32), reward=self.reward, info={"sample": float(j)})
            for j in range(request.n)
        ]
        return [Trajectory(request, (s,), self.status(request.problem, j)) for j, s in enumerate(step)]


class Judge:
    """A reward whose grades are given: leaf -> rewards, None, or an error for the whole group."""

    def __init__(self, grade: Callable[[int], Any]) -> None:
        self.grades = grade

    async def grade(self, group: Sequence[Trajectory], ctx: Any) -> list[Any]:
        grades = [self.grades(i) for i in range(len(group))]
        for g in grades:
            if isinstance(g, Exception):
                raise g
        return grades


def context(
    grade: Grade, rollout: Any = None, *, n: int = 2, weights: Any = None, problems: int = 4, **rewards: Any
) -> Any:
    """A run's context over `Graded`, whose rollout is `Samples` unless another is given."""
    return testing.context(
        task=Graded(grade, problems), rollout=rollout or Samples(), n=n, sampling=Sampling(temperature=0.7),
        weights=weights or {"score": 1.0}, rewards=rewards,
    )  # fmt: skip


def requests(n: int = 2, **fields: Any) -> list[Request]:
    return [Request(Problem("told", str(i), float(i)), **fields) for i in range(n)]

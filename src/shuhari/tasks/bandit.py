"""A k-armed bandit: one state, one decision, and exactly known expected rewards.

Left out: contexts, and means that move. A reward is a function of (seed, problem, arm): each problem is one draw, so
rewards need no generator, and samples of one problem that pull the same arm get the same reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Annotated, Any, Literal

import numpy as np

from shuhari.bounds import AtLeast0, Bounds, Length, Seed, check
from shuhari.data import Array, Problem, Step
from shuhari.kernel.registry import register
from shuhari.ports.answers import Answers
from shuhari.tasks.source import Generated, Stream, check_split, last_decision


@register("task", "bandit")
@dataclass
class Bandit:
    """A k-armed bandit: one state, one decision, and exactly known expected rewards.

    The reward is `task`; `score` is the arm's mean, scaled to 0 for the worst arm and 1 for the best. Raises ValueError
    for means that do not fit.
    """

    arms: Annotated[int, Bounds(2, 1_000_000)] = 10
    """Number of arms, k."""
    law: Literal["bernoulli", "gaussian"] = "bernoulli"
    """Distribution of rewards: `bernoulli` (0 or 1) or `gaussian` with standard deviation `scale`."""
    means: tuple[float, ...] = ()
    """Expected reward of each arm, [arms]; empty draws them from `seed`: uniform in (0, 1) for bernoulli, standard
    normal for gaussian (the testbed of Sutton and Barto, section 2.3)."""
    scale: AtLeast0 = 1.0
    """Standard deviation of gaussian rewards; 0 makes them deterministic."""
    test_size: Length = 256
    """Number of problems in the test split, each a pull of the same bandit."""
    seed: Seed = 0
    """Seed of the means, if none are given, and of the rewards. In a recipe it is the run's seed unless set."""
    stamps = ("reward/task", "reward/score")

    def __post_init__(self) -> None:
        check(self)
        self.means = tuple(map(float, self.means)) or tuple(self._draw_means())
        if len(self.means) != self.arms:
            raise ValueError(f"bandit: {len(self.means)} means for {self.arms} arms: expected one an arm")
        if self.law == "bernoulli" and not all(0 <= m <= 1 for m in self.means):
            raise ValueError(f"bandit: means are {self.means}: expected probabilities in [0, 1] (law bernoulli)")

    def problems(self, split: str) -> Generated:
        """Returns draws of the same bandit: endless for `train`, `test_size` of them for `test`."""
        count = self.test_size if check_split(split) == "test" else None
        return Generated(lambda i: Problem("bandit", f"{split}/{i}", 0), count)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        """Returns `task`: the reward drawn for this problem and arm; `score`: the arm's mean scaled to 0 (worst) to 1
        (best), without noise."""
        arm = int(np.asarray(last_decision(steps).action).item())
        if not 0 <= arm < self.arms:
            raise ValueError(f"bandit: the action is {arm}: expected an arm in 0..{self.arms - 1}")
        u, mean = Stream("bandit", self.seed, "reward", problem.id, arm).uniform(), self.means[arm]
        reward = float(u < mean) if self.law == "bernoulli" else mean + self.scale * NormalDist().inv_cdf(u)
        return {"task": reward, "score": float(self._scores[arm])}

    def answers(self, problem: Problem) -> Answers:
        """Returns all arms, with their `score`."""
        return Answers(tuple(range(self.arms)), tuple(map(float, self._scores)), complete=True)

    def expected(self, probabilities: Sequence[float] | Array) -> float:
        """Returns the exact expected reward of a policy with probabilities [k]."""
        return float(np.dot(np.asarray(probabilities, np.float64), self.means))

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> tuple[Any, Any]:
        from gymnasium.spaces import Discrete

        return Discrete(1), Discrete(self.arms)

    def _draw_means(self) -> list[float]:
        stream = Stream("bandit", self.seed, "means")
        u = [stream.uniform() for _ in range(self.arms)]
        return u if self.law == "bernoulli" else [NormalDist().inv_cdf(x) for x in u]

    @cached_property
    def _scores(self) -> Array:
        means = np.asarray(self.means)
        low, high = means.min(), means.max()
        return (means - low) / (high - low) if high > low else np.ones_like(means)

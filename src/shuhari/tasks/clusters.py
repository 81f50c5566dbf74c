"""Points in the plane around a prompt's clusters, rewarded for being near its goal: a fully known task for denoising
policies.

The data distribution is a mixture of Gaussians and the reward is quadratic. So the policy that maximises reward less a
divergence from the data, its tilt by e^(strength x reward), is also a mixture of Gaussians: the exact optimum of
regularised training, in closed form. Left out: turns, and clusters that differ in size or shape.

Axes: `m` clusters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shuhari.bounds import AtLeast0, Length, Positive, Seed, check
from shuhari.data import Array, Problem, Step
from shuhari.kernel.registry import register
from shuhari.tasks.scene import Scene
from shuhari.tasks.source import Generated, Stream, check_split, last_decision

SEEN = 7  # numbers in a prompt


class Law(NamedTuple):
    """A mixture of Gaussians with one deviation: weights [m], means [m, 2]."""

    weights: Array
    means: Array
    std: float


@register("task", "clusters")
@dataclass
class Clusters:
    """Points in the plane around the prompt's clusters, rewarded for being near its goal: a one-step task for denoising
    policies, with the best policy in closed form.

    `task` is the reward, -|point - goal|²/(2 `reach`²) + `offset` x difficulty; `score` in (0, 1] is its exponential
    without the difficulty, `usual` the log-density of the point [2] under the data, in nats.

    A prompt [7] has the cosine and sine of the angle of its first cluster, the same for its goal, the centre (two
    numbers uniform in [-0.5, 0.5]), and its difficulty, uniform in [-1, 1], which no policy can change. The clusters
    and the goal lie on the unit circle around the centre. Training prompts are endless, without repetition.
    """

    clusters: Length = 4
    """Number of Gaussian clusters in the data, evenly spread on the unit circle around the prompt's centre."""
    std: Positive = 0.25
    """Standard deviation of each cluster; the unit circle has radius 1."""
    reach: Positive = 0.7
    """Length scale of the reward: a point this far from the goal scores e^-0.5."""
    offset: AtLeast0 = 0.0
    """Weight of the prompt's difficulty in the reward, which no action changes; 0 leaves it out, more makes a baseline
    useful."""
    test_size: Length = 128
    """Number of prompts in the test split."""
    seed: Seed = 0
    """Seed of the prompts. In a recipe it is the run's seed unless set."""
    stamps = ("reward/task", "reward/score", "reward/usual")

    def __post_init__(self) -> None:
        check(self)

    def problems(self, split: str) -> Generated:
        count = self.test_size if check_split(split) == "test" else None
        return Generated(lambda i: Problem("clusters", f"{split}/{i}", self._draw(split, i)), count)

    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any]:
        prompt, point = np.asarray(problem.prompt, np.float64), np.asarray(last_decision(steps).action, np.float64)
        miss = float(((point - self.goal(prompt)) ** 2).sum()) / (2 * self.reach**2)
        return {
            "task": self.offset * float(prompt[6]) - miss, "score": math.exp(-miss),
            "usual": _log_density(self.tilted(prompt, 0.0), point),
        }  # fmt: skip

    def environment(self, problem: Problem) -> None:
        return None

    def spaces(self) -> tuple[Any, Any]:
        from gymnasium.spaces import Box

        return Box(-1.0, 1.0, (SEEN,), np.float32), Box(-np.inf, np.inf, (2,), np.float32)

    def expert(self, observation: Any, rng: np.random.Generator) -> Array:
        """Returns a point [2] drawn from the data."""
        law = self.tilted(np.asarray(observation, np.float64), 0.0)
        return law.means[rng.choice(self.clusters, p=law.weights)] + law.std * rng.normal(size=2)

    @property
    def scene(self) -> Scene:
        """The plane of points, and the goal of a prompt."""
        return Scene((-2.0, -2.0, 4.0, 4.0), aim=self.goal)

    # ---------------------------------------------------------------- in closed form

    def goal(self, prompt: Array) -> Array:
        """Returns [2] the goal of a prompt."""
        return np.asarray(prompt[4:6] + prompt[2:4], np.float64)

    def tilted(self, prompt: Array, strength: float) -> Law:
        """Returns the data distribution times e^(strength x reward), normalised: the policy with the best reward less
        the KL from the data over `strength`. 0: the data."""
        angle = math.atan2(prompt[1], prompt[0]) + 2 * math.pi * np.arange(self.clusters) / self.clusters
        means = prompt[4:6] + np.stack([np.cos(angle), np.sin(angle)], 1)
        pull = strength / self.reach**2  # the precision that the reward adds
        own = 1 / self.std**2
        away = means - self.goal(prompt)
        logits = -own * pull / (own + pull) * (away**2).sum(1) / 2
        weights = np.exp(logits - logits.max())
        moved = (own * means + pull * self.goal(prompt)) / (own + pull)
        return Law(weights / weights.sum(), moved, (own + pull) ** -0.5)

    def expected(self, prompt: Array, strength: float) -> float:
        """Returns the mean score of points of `tilted`."""
        law, square = self.tilted(prompt, strength), self.reach**2
        wide = square + law.std**2
        return float(
            square / wide * law.weights @ np.exp(-((law.means - self.goal(prompt)) ** 2).sum(1) / (2 * wide))
        )

    def _draw(self, split: str, index: int) -> Array:
        stream = Stream("clusters", self.seed, split, index)
        a, b = (2 * math.pi * stream.uniform() for _ in range(2))
        x, y = (stream.uniform() - 0.5 for _ in range(2))
        found = math.cos(a), math.sin(a), math.cos(b), math.sin(b), x, y, 2 * stream.uniform() - 1
        return np.array(found, np.float32)


def _log_density(law: Law, point: Array) -> float:
    away = ((point - law.means) ** 2).sum(1) / (2 * law.std**2)
    low = away.min()
    return float(np.log(law.weights @ np.exp(low - away)) - low - math.log(2 * math.pi * law.std**2))

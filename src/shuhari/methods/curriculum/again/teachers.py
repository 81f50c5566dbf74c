"""Teachers of a black-box student: choose the next task in a task space [0, 1]^d by how rewards change there.

ALP-GMM: "Teacher algorithms for curriculum learning of Deep RL in continuously parameterized environments" (Portelas et
al. 2019, arXiv 1910.07224). AGAIN: "Meta Automatic Curriculum Learning" (Portelas et al. 2020, arXiv 2011.08463) and
its code as released. Absolute learning progress (ALP) is the distance of a reward from that of the nearest earlier
task. Left out: students whose rewards are not in [0, 1]; the student itself (`cubes` has one).

Axes: `d` dimensions of a task, `C` components of a mixture, `N` tasks.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from shuhari.data import Array

Variant = Literal["R", "T", "P"]
EVERY = 250  # tasks between fits, and in each fit
COMPONENTS = range(2, 11)  # possible numbers of components
LEAST_ALP = 0.2  # components of an earlier student with at most this mean ALP are left out
WINDOW = 50  # rewards that measure the progress of a lesson
RENEWED = 100  # tasks between updates of the last lesson's ALP, and ALPs kept of each component
RANDOM, LATER_RANDOM = 0.2, 0.02  # share of random tasks: for ALP-GMM, and once there are lessons


class Mixture(NamedTuple):
    """A Gaussian mixture: means [C, d + 1], covariances [C, d + 1, d + 1] over tasks and, last, their ALP."""

    means: Array
    covariances: Array

    def join(self, other: Mixture) -> Mixture:
        return Mixture(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


class Lesson(NamedTuple):
    """A mixture of an earlier student, and its final mean reward on tasks of that mixture."""

    mixture: Mixture
    reached: float


class Teacher(Protocol):
    """A teacher: `draw` returns a task [d], whose reward goes to `update`."""

    def draw(self) -> Array: ...
    def update(self, task: Array, reward: float) -> None: ...


@dataclass(eq=False)
class Uniform:
    """Draws tasks uniformly."""

    rng: np.random.Generator
    d: int = 2

    def draw(self) -> Array:
        return self.rng.random(self.d)

    def update(self, task: Array, reward: float) -> None: ...


@dataclass(eq=False)
class AlpGmm:
    """ALP-GMM: every 250 tasks, fits the mixture with the lowest AIC to the last 250, each with its ALP. A task comes
    from a component drawn in proportion to its mean ALP, or with probability `random` uniformly, as do the first 250.

    `fits`: (number of tasks, mixture) of every fit; `rewards` [N] and `origins` [N], the component of each task, -1 for
    a random one.
    """

    rng: np.random.Generator
    d: int = 2
    random: float = RANDOM
    fits: list[tuple[int, Mixture]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    alps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tasks = np.zeros((2 * EVERY, self.d))  # [>= N, d]
        self._origin = -1

    @property
    def mixture(self) -> Mixture | None:
        return self.fits[-1][1] if self.fits else None

    def draw(self) -> Array:
        self._origin = -1
        if self.mixture is None or self.rng.random() < self.random:
            return self.rng.random(self.d)
        task, self._origin = draw_task(self.mixture, self.rng)
        return task

    def update(self, task: Array, reward: float) -> None:
        n = len(self.rewards)
        if n == len(self._tasks):
            self._tasks = np.concatenate([self._tasks, np.zeros_like(self._tasks)])
        self.alps.append(measure_alp(self._tasks[:n], self.rewards, task, reward))
        self._tasks[n] = task
        self.rewards.append(reward)
        self.origins.append(self._origin)
        if (n + 1) % EVERY == 0:
            last = np.column_stack([self._tasks[n + 1 - EVERY : n + 1], self.alps[-EVERY:]])
            self.fits.append((n + 1, fit_mixture(last, int(self.rng.integers(2**31)))))


@dataclass(eq=False)
class Again:
    """ALP-GMM until `begin` sets the lessons of an earlier student; from then on tasks come from the current lesson and
    the live ALP-GMM together, in proportion to mean ALP, or with probability `later_random` uniformly.

    variant: the next lesson comes when the mean of the last 50 rewards of the lesson's tasks reaches the earlier
    student's (`R`), with every 250th task (`T`), or all lessons are one (`P`). The last lesson of R and T stays; after
    every 100 of its tasks its components' ALPs become the means over their last 100 tasks, 0 without any.
    """

    live: AlpGmm
    variant: Variant = "R"
    later_random: float = LATER_RANDOM
    at: int = -1  # the current lesson

    def __post_init__(self) -> None:
        self.lessons: tuple[Lesson, ...] = ()
        self._mixture = Mixture(*(np.zeros((0,) + (self.live.d + 1,) * k) for k in (1, 2)))  # of the lesson
        self._rewards: deque[float] = deque(maxlen=WINDOW)
        self._own = -1  # the lesson's component of the current task
        self._found: list[deque[float]] = []  # ALPs in each component of the last lesson
        self._fresh = 0

    def begin(self, lessons: Sequence[Lesson]) -> None:
        """Continues by these lessons; without any, as plain ALP-GMM."""
        self.lessons = tuple(lessons)
        if self.lessons:
            self._enter(self._timed() if self.variant == "T" else 0)

    def draw(self) -> Array:
        if not self.lessons:
            return self.live.draw()
        self._own, self.live._origin = -1, -1
        if self.live.rng.random() < self.later_random:
            return self.live.rng.random(self.live.d)
        mixture = self._mixture if self.live.mixture is None else self._mixture.join(self.live.mixture)
        task, component = draw_task(mixture, self.live.rng)
        own = len(self._mixture.means)
        if component < own:
            self._own = component
        else:
            self.live._origin = component - own
        return task

    def update(self, task: Array, reward: float) -> None:
        self.live.update(task, reward)
        if not self.lessons:
            return
        last = self.at == len(self.lessons) - 1
        if self._own >= 0:
            self._rewards.append(reward)
            if last and self.variant != "P":
                self._renew(self.live.alps[-1])
        if last:
            return
        if self.variant == "T" and self._timed() != self.at:
            self._enter(self._timed())
        elif self.variant == "R" and has_reached(self._rewards, self.lessons[self.at].reached):
            self._enter(self.at + 1)

    def _timed(self) -> int:
        return min(len(self.live.rewards) // EVERY, len(self.lessons) - 1)

    def _enter(self, at: int) -> None:
        if self.variant == "P":
            at, mixtures = len(self.lessons) - 1, [lesson.mixture for lesson in self.lessons]
            self._mixture = Mixture(*(np.concatenate(parts) for parts in zip(*mixtures, strict=True)))
        else:
            self._mixture = Mixture(*(x.copy() for x in self.lessons[at].mixture))
        self.at, self._own = at, -1
        self._rewards.clear()
        self._found, self._fresh = [deque(maxlen=RENEWED) for _ in self._mixture.means], 0

    def _renew(self, alp: float) -> None:
        """Counts the ALP of a task of the last lesson."""
        self._found[self._own].append(alp)
        self._fresh += 1
        if self._fresh == RENEWED:
            self._mixture.means[:, -1] = [np.mean(found) if found else 0.0 for found in self._found]
            self._fresh = 0


def measure_alp(tasks: Array, rewards: Sequence[float], task: Array, reward: float) -> float:
    """Returns |reward - that of the nearest earlier task| over tasks [N, d]; 0 for five or fewer."""
    if len(tasks) <= 5:
        return 0.0
    return abs(reward - rewards[int(((tasks - task) ** 2).sum(1).argmin())])


def choose_component(alp: Array, rng: np.random.Generator) -> int:
    """Draws a component in proportion to its mean ALP [C]; uniformly if all are 0."""
    total = float(alp.sum())
    return int(rng.integers(len(alp))) if total == 0 else int(rng.choice(len(alp), p=alp / total))


def draw_task(mixture: Mixture, rng: np.random.Generator) -> tuple[Array, int]:
    """Returns (a task [d] in [0, 1]^d, its component)."""
    at = choose_component(np.maximum(mixture.means[:, -1], 0.0), rng)
    mean, covariance = mixture.means[at], mixture.covariances[at]
    point = mean + np.linalg.cholesky(covariance) @ rng.standard_normal(len(mean))
    return np.clip(point[:-1], 0.0, 1.0), at  # without its ALP


def fit_mixture(points: Array, seed: int) -> Mixture:
    """Returns the Gaussian mixture of 2 to 10 components with the lowest AIC on points [N, d + 1]."""
    try:
        from sklearn.mixture import GaussianMixture
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'{error}: pip install "shuhari[studies]"') from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fits that have not converged are compared too
        fits: list[Any] = [GaussianMixture(k, random_state=seed).fit(points) for k in COMPONENTS]
    best = min(fits, key=lambda fit: float(fit.aic(points)))
    return Mixture(best.means_, best.covariances_)


def has_reached(rewards: deque[float], reached: float) -> bool:
    """Whether a full window of rewards has at least this mean."""
    return len(rewards) == rewards.maxlen and float(np.mean(rewards)) >= reached


def make_lessons(student: AlpGmm) -> tuple[Lesson, ...]:
    """Returns the lessons for another student: the components of each mixture with a mean ALP above 0.2, if tasks were
    drawn from them, with the mean of the last 50 rewards of those tasks."""
    return tuple(_list_lessons(student))


def _list_lessons(student: AlpGmm) -> Iterator[Lesson]:
    for done, mixture in student.fits:
        kept = np.flatnonzero(mixture.means[:, -1] > LEAST_ALP)
        until = slice(done, done + EVERY)
        drawn = zip(student.rewards[until], student.origins[until], strict=True)
        rewards = [reward for reward, origin in drawn if origin in kept]
        if rewards:
            yield Lesson(Mixture(mixture.means[kept], mixture.covariances[kept]), float(np.mean(rewards[-WINDOW:])))


def find_former(tests: Array, finals: Array, test: Array, k: int = 5) -> int:
    """Returns, among the k earlier students whose tests [S, T] at this time are nearest to this one's [T], the one with
    the highest sum of its final test, finals [S, T]."""
    near = np.argsort(((tests - test) ** 2).sum(1), kind="stable")[:k]
    return int(near[finals[near].sum(1).argmax()])

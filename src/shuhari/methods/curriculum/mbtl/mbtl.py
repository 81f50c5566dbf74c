"""Chooses training contexts by a surrogate model of how well training in each one generalises to all of them.

Model-Based Transfer Learning for Contextual Reinforcement Learning (Cho et al. 2024). `J(a, b)` is the return of the
policy trained in context a and measured in b, scaled to [0, 1]; each context is served by the best policy so far: `V(b)
= max_a J(a, b)`. A Gaussian process over the contexts predicts J(a, a), and a line in the distance the loss from a to
b; the next context is the one whose training promises the largest rise of the mean of V.

The largest of several measurements is biased upwards, so the reported score uses other episodes than the choice.

Axes: `n` contexts, in order; their distance is that of their indices. Left out: contexts of several dimensions.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shuhari.bounds import AtLeast0, Count, Length, check
from shuhari.data import Array, Info, code
from shuhari.kernel.registry import register
from shuhari.ports import Runs


@register("study", "mbtl")
@dataclass
class Mbtl:
    """Trains in a few contexts (such as pole lengths) chosen so that their policies together serve all contexts best
    (MBTL).

    Each of the `trainings` runs is measured in all contexts, and each context is served by the best policy. Reports
    `study/coverage`, the mean over contexts of the serving policy's score, on the evaluation's own split. Raises
    ValueError for contexts with different numbers of values, or fewer than `trainings`.
    """

    contexts: Mapping[str, tuple[float, ...]]
    """Setting -> its value in each context, in order; several settings change together."""
    trainings: Length = 15
    """Number of runs, one for each context that is trained in."""
    pick: Literal["mbtl", "random", "equidistant", "independent"] = "mbtl"
    """Rule for the next context: "mbtl" by a Gaussian process, "random", "equidistant", or "independent" (each in turn,
    its policy used there alone)."""
    beta: Literal["one", "inverse", "log"] = "log"
    """Weight of the uncertainty after k trainings: "one", "inverse" 1 / (k + 1), or "log" sqrt(log(k + 1)), as in the
    paper's results."""
    slope: AtLeast0 | Literal["fitted"] = "fitted"
    """Score, on the scale of [0, 1], lost for each context further away; "fitted" estimates it from the
    measurements."""
    noise: AtLeast0 = 0.1
    """Standard deviation of a measured score, on the scale of [0, 1], that the Gaussian process assumes."""
    restarts: Count = 9
    """Number of further starts from which the Gaussian process is fitted; more avoid poor fits."""
    low: float = 0.0
    """Score of the evaluation that counts as 0."""
    high: float = 1.0
    """Score of the evaluation that counts as 1; 500 for CartPole, for example."""
    measure: str = "greedy"
    """Name of the score in the evaluation, such as `greedy` or `mean`."""
    choose: str = "train"
    """Split of the task whose episodes decide which policy serves a context; the reported score is on the evaluation's
    own split."""

    def __post_init__(self) -> None:
        check(self)
        sizes = {len(values) for values in self.contexts.values()}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"contexts of {sorted(sizes)} values: expected settings with as many values each")
        self.n = sizes.pop()
        if self.trainings > self.n:
            raise ValueError(f"trainings is {self.trainings}: expected 1 to {self.n}, a context each")
        if self.high <= self.low:
            raise ValueError(f"high is {self.high}: expected more than low, {self.low}")

    def __call__(self, runs: Runs) -> Iterator[Info]:
        J, done = np.zeros((self.n, self.n)), list[int]()  # untrained: 0, the lowest
        held = J.copy()  # the same on other episodes
        while len(done) < self.trainings:
            a = self.choose_next(J, done, runs.seed)
            yield from runs.train(f"context-{a}", self.settings(a))
            for b in [a] if self.pick == "independent" else range(self.n):
                held[a, b] = self.measure_score(runs, a, self.settings(b))
                if self.pick != "independent":  # otherwise nothing is chosen
                    J[a, b] = self.measure_score(runs, a, {**self.settings(b), "evaluate.split": self.choose})
            done.append(a)
            best = np.arange(self.n) if self.pick == "independent" else J.argmax(0)
            coverage = held[best, np.arange(self.n)].mean()
            numbers = {"trained": len(done), "context": a, "own": held[a, a], "coverage": coverage}
            yield {f"study/{k}": v for k, v in numbers.items()}

    def measure_score(self, runs: Runs, a: int, settings: Mapping[str, Any]) -> float:
        """Returns the scaled score of the policy of context `a` under `settings`."""
        score = runs.evaluate(f"context-{a}", settings)[self.measure]
        return (score - self.low) / (self.high - self.low)

    def settings(self, context: int) -> dict[str, float]:
        """Returns the settings of a run in this context."""
        return {key: values[context] for key, values in self.contexts.items()}

    def choose_next(self, J: Array, done: list[int], seed: int) -> int:
        """Returns the context to train in after those in `done`."""
        k = len(done)
        if self.pick == "independent":
            return k
        if self.pick == "equidistant":
            return int((2 * k + 1) * (self.n - 1) / (2 * self.trainings) + 0.5)
        if self.pick == "random":
            return int(np.random.default_rng(code(seed, "contexts")).permutation(self.n)[k])
        if not done:
            return self.n // 2
        mean, deviation = fit_surrogate(
            done, J[done, done], self.n, self.noise, self.restarts, code(seed, "surrogate", k)
        )
        c = fit_loss(J, done) if self.slope == "fitted" else self.slope
        worth = acquisition(mean, deviation, J.max(0), BETA[self.beta](k), c)
        worth[done] = -np.inf
        return int(worth.argmax())


BETA: dict[str, Callable[[int], float]] = {
    "one": lambda k: 1.0,
    "inverse": lambda k: 1 / (k + 1),
    "log": lambda k: math.sqrt(math.log(k + 1)),
}


def acquisition(mean: Array, deviation: Array, V: Array, beta: float, c: float) -> Array:
    """Returns [n] the promised rise of the mean of V for training in each context; arguments are [n] (the paper's
    acquisition function): `mean_b max(mean(a) + beta deviation(a) - c |a - b| - V(b), 0)`."""
    at = np.arange(len(V))
    promised: Array = (mean + beta * deviation)[:, None] - c * np.abs(at[:, None] - at)
    return np.maximum(promised - V, 0).mean(1)


def fit_loss(J: Array, done: list[int]) -> float:
    """Returns the loss per step of the index: least squares of J(a, a) - J(a, b) on |a - b|, through the origin, at
    least 0."""
    distance = np.abs(np.arange(len(J)) - np.array(done)[:, None])
    loss = J[done, done][:, None] - J[done]
    return max(0.0, float((distance * loss).sum() / (distance**2).sum()))


def fit_surrogate(at: list[int], y: Array, n: int, noise: float, restarts: int, seed: int) -> tuple[Array, Array]:
    """Returns ([n] mean, [n] deviation) of a Gaussian process over 0..n-1, given `y` at `at`: a constant times an RBF
    kernel, fitted by marginal likelihood. Its prior mean is 0, the lowest return."""
    try:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'{error}: pip install "shuhari[studies]"') from error
    kernel: Any = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(1.0, (1e-2, 1e2))
    process = GaussianProcessRegressor(kernel, alpha=noise**2, n_restarts_optimizer=restarts, random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # with few points the best length is often one of its bounds
        process.fit(np.array(at, float)[:, None], y)
    return tuple(process.predict(np.arange(n, dtype=float)[:, None], return_std=True))

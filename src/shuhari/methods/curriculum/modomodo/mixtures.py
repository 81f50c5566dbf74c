"""Chooses the mixture of domains to train on: trains a few mixtures, fits their scores, and trains on the maximiser.

Source: "MoDoMoDo: Multi-Domain Data Mixtures for Multimodal LLM Reinforcement Learning" (Liang et al. 2025, arXiv
2505.24871). A mixture is a point w [m] of the simplex, the shares of m domains; a quadratic f(w) = a + b'w + w'Cw,
fitted by ridge regression to the trainings of seed mixtures, predicts the score of a training. The chosen mixture is
trained again with another seed, and scored on other problems than the choice, so that luck does not count twice.

Axes: `m` domains, `M` mixtures, `F` features. Left out: mixtures that change during a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import isfinite
from typing import Any, Literal

import numpy as np

from shuhari.bounds import AtLeast0, Length, check, nearest
from shuhari.data import EMPTY, Array, Info, code
from shuhari.kernel.registry import register
from shuhari.ports import Runs

RIDGES = tuple(10.0**k for k in range(-6, 2))  # candidates if none is given


@register("study", "mixtures")
@dataclass
class Mixtures:
    """Finds the shares in which to mix m data domains: trains on a few seed mixtures, fits their scores, and trains on
    the best (MoDoMoDo).

    Seed mixtures: each domain alone, each left out, all equal. A quadratic f(w) = a + b'w + w'Cw is fitted to their
    scores; the chosen mixture is trained with another seed.

    Yields a row per training: `study/trained`, their number so far, and `study/seed`, the score of a seed mixture for
    the choice; in the last, `study/score` of the chosen mixture, by the run's own evaluation, `study/predicted`, its
    predicted score, `study/spread`, the range of the seed mixtures' scores, and `study/share@<i>`, the share of domain
    i. Raises ValueError for fewer than two domains; after a training, for a `measure` that its evaluation lacks (only a
    trained run shows its scores), and a score that is not finite.
    """

    shares: tuple[str, ...]
    """Keys of the settings that hold the share of each domain, at least two."""
    pick: Literal["surrogate", "uniform", "best"] = "surrogate"
    """Mixture trained last: "surrogate", the maximum of the fit; "best", the best seed mixture; "uniform", equal
    shares. Every rule trains the seed mixtures."""
    grid: Length = 20
    """Number of steps of the search from 0 to 1: the tried shares are multiples of 1 / `grid`."""
    ridge: AtLeast0 | Literal["loo"] = "loo"
    """Weight of the squared coefficients in the fit; "loo" uses the one of 1e-6 to 10 that predicts left-out mixtures
    best."""
    measure: str = "mean"
    """Name of the score in the evaluation that is fitted and reported."""
    choose: Mapping[str, Any] = EMPTY
    """Settings overriding those of a run for the scores used to choose, such as other problems; empty chooses by the
    reported problems."""

    def __post_init__(self) -> None:
        check(self)
        if len(set(self.shares)) < 2 or len(set(self.shares)) < len(self.shares):
            raise ValueError(f"mixtures: shares are {self.shares}: expected at least two settings that differ")

    def __call__(self, runs: Runs) -> Iterator[Info]:
        w = list_seeds(len(self.shares))
        scores = list[float]()
        for i, mixture in enumerate(w):
            yield from runs.train(f"mixture-{i}", self.settings(mixture))
            scores.append(self.score(runs, f"mixture-{i}", mixture, self.choose))
            if i + 1 < len(w):
                yield {"study/trained": i + 1, "study/seed": scores[i]}
        y = np.array(scores)
        theta = fit_quadratic(w, y, find_ridge(w, y) if self.ridge == "loo" else self.ridge)
        chosen = self.choose_mixture(w, y, theta)
        own = {"seed": code(runs.seed, "chosen") % 2**31}
        yield {"study/trained": len(w), "study/seed": scores[-1]}
        yield from runs.train("chosen", {**self.settings(chosen), **own})
        yield {
            "study/trained": len(w) + 1,
            "study/score": self.score(runs, "chosen", chosen),
            "study/predicted": float((list_features(chosen[None]) @ theta)[0]),
            "study/spread": float(np.ptp(y)),
            **{f"study/share@{i}": float(x) for i, x in enumerate(chosen)},
        }

    def score(self, runs: Runs, name: str, mixture: Array, settings: Mapping[str, Any] = EMPTY) -> float:
        """Returns the held-out score of the run `name`, trained on this mixture [m]."""
        found = runs.evaluate(name, settings)
        if self.measure not in found:
            raise ValueError(f"mixtures: measure is {self.measure!r}, which is no score; "
                             f"{nearest(self.measure, found)}")  # fmt: skip
        score = found[self.measure]
        if not isfinite(score):
            shares = ", ".join(f"{key} = {x:.3g}" for key, x in self.settings(mixture).items())
            raise ValueError(f"mixtures: {self.measure!r} of {name} ({shares}) is {score}: expected a finite score")
        return score

    def settings(self, mixture: Array) -> dict[str, Any]:
        """Returns the settings of a run on this mixture [m]."""
        return {key: float(x) for key, x in zip(self.shares, mixture, strict=True)}

    def choose_mixture(self, w: Array, y: Array, theta: Array) -> Array:
        """Returns [m] the mixture to train on, after mixtures [M, m] scored y [M], to which theta [F] was fitted."""
        if self.pick == "uniform":
            return np.full(len(self.shares), 1 / len(self.shares))
        if self.pick == "best":
            best: Array = w[int(y.argmax())]
            return best
        every = list_mixtures(len(self.shares), self.grid)
        chosen: Array = every[int((list_features(every) @ theta).argmax())]
        return chosen


def list_seeds(m: int) -> Array:
    """Returns [M, m] each domain alone, each left out, all equal: 2 m + 1 mixtures, three for two domains."""
    alone = np.eye(m)
    left_out = (1 - alone) / (m - 1) if m > 2 else alone[:0]
    return np.concatenate([alone, left_out, np.full((1, m), 1 / m)])


def list_mixtures(m: int, grid: int) -> Array:
    """Returns [M, m] every mixture whose shares are multiples of 1 / grid, in the order of their shares."""
    if m == 1:
        return np.ones((1, 1))
    counts: list[tuple[int, ...]] = [(i,) for i in range(grid + 1)]
    for _ in range(m - 2):
        counts = [
            (*c, i)
            for c in counts
            for i in range(grid + 1 - sum(c))
        ]
    return np.array([(*c, grid - sum(c)) for c in counts]) / grid


def list_features(w: Array) -> Array:
    """Returns [M, F] features of mixtures [M, m]: 1, all shares except the last, which follows from them, and their
    pairwise products."""
    free = w[:, :-1]
    pairs = combinations_with_replacement(range(free.shape[1]), 2)
    return np.concatenate([np.ones((len(w), 1)), free, *(free[:, [i]] * free[:, [j]] for i, j in pairs)], 1)


def fit_quadratic(w: Array, y: Array, ridge: float) -> Array:
    """Returns [F] the coefficients that minimise the squared error of y [M] at w [M, m] plus `ridge` times their
    squares, except the constant's; at 0 those of the smallest norm."""
    theta: Array = _solve(list_features(w), ridge) @ y
    return theta


def find_ridge(w: Array, y: Array) -> float:
    """Returns the ridge with the smallest mean squared leave-one-out error."""
    x = list_features(w)

    def error(ridge: float) -> float:
        hat = x @ _solve(x, ridge)  # leave-one-out without refitting: (y - fit) / (1 - leverage)
        return float((((y - hat @ y) / np.maximum(1 - np.diag(hat), 1e-12)) ** 2).mean())

    return min(RIDGES, key=error)


def _solve(x: Array, ridge: float) -> Array:
    """Returns [F, M] the matrix that maps scores to coefficients."""
    penalty = ridge * np.diag([0.0, *np.ones(x.shape[1] - 1)])
    found: Array = np.linalg.pinv(x.T @ x + penalty) @ x.T
    return found

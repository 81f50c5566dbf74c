"""How much better a tuned front is than that of default settings, in hypervolume on seeds that the search has not seen
(Felten et al. 2023, arXiv 2310.16487). A table of Q-learning is trained on a small world; `shuhari sweep` with several
metrics searches any recipe.

Left out: Bayesian search (settings are drawn), importances, and the utility of a front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shuhari.bounds import Length, check
from shuhari.data import Array
from shuhari.kernel.pareto import compute_hypervolume
from shuhari.kernel.registry import register

DEPTHS = np.array([1, 2, 3, 4, 4, 4, 7, 7, 9, 10])  # deep sea treasure (Vamplew et al. 2011), a column each
TREASURES = np.array([0.7, 8.2, 11.5, 14.0, 15.1, 16.1, 19.6, 20.3, 22.4, 23.7])  # convex (Yang et al. 2019)
ROWS, COLUMNS, LONGEST = 11, 10, 50  # LONGEST: steps of an episode
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])
DEFAULT = {"rate": 0.1, "epsilon": 0.1, "discount": 0.99, "start": 0.0}
WEIGHTS = 6


@register("analysis", "front_gap")
@dataclass
class FrontGap:
    """How much larger the hypervolume of a tuned front is than that of default settings, on seeds kept apart.

    A run trains a table by Q-learning for each of six weights between treasure and time in deep sea treasure; its front
    is the set of their greedy returns, each in [0, 1]. Settings are drawn, and those with the largest mean hypervolume
    over the tuning seeds are tested beside the default ones. Numbers: `tuned` and `default`, mean hypervolume in [0, 1]
    on the test seeds, and `gain`, the first less the second; `drawn`, the mean over all settings that were drawn, what
    a search has to beat; `tuning`, that of the chosen settings on the tuning seeds, and `gap`, that less `tuned`;
    `largest`, the hypervolume of all best returns; `rate`, `epsilon`, `discount`, `start` (a table's first value), as
    chosen.
    """

    trials: Length = 20
    """Number of settings that are drawn."""
    tuning: Length = 3
    """Runs of each of them, whose mean counts."""
    tests: Length = 10
    """Further runs of the chosen and of the default settings."""
    episodes: Length = 150
    """Episodes of each weight in a run."""

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, seed: int) -> dict[str, float]:
        drawn, tuning, tests = np.random.default_rng(seed).spawn(3)
        low, high = np.log([0.03, 0.01]), np.log([1.0, 1.0])
        rate, epsilon = np.exp(drawn.uniform(low, high, (self.trials, 2))).T
        space = {"rate": rate, "epsilon": epsilon, "discount": drawn.uniform(0.9, 1.0, self.trials),
                 "start": drawn.uniform(0.0, 1.0, self.trials)}  # fmt: skip
        fronts = train({key: np.repeat(x, self.tuning) for key, x in space.items()}, self.episodes, tuning)
        seen = measure_fronts(fronts).reshape(self.trials, self.tuning).mean(1)
        best = int(seen.argmax())
        chosen = {key: float(x[best]) for key, x in space.items()}
        both = {key: np.repeat([chosen[key], DEFAULT[key]], self.tests) for key in DEFAULT}
        tested = train(both, self.episodes, tests)
        areas = measure_fronts(tested).reshape(2, self.tests).mean(1)
        return {"tuned": float(areas[0]), "default": float(areas[1]), "gain": float(areas[0] - areas[1]),
                "drawn": float(seen.mean()), "tuning": float(seen[best]), "gap": float(seen[best] - areas[0]),
                "largest": float(measure_fronts(list_best()[None])[0]), **chosen}  # fmt: skip


def list_best() -> Array:
    """Return the returns [10, 2] of the shortest ways to each treasure, in [0, 1]: treasure, and time that is left."""
    steps = np.arange(COLUMNS) + DEPTHS
    return np.stack([TREASURES / TREASURES.max(), 1 - steps / LONGEST], 1)


def train(settings: Mapping[str, Array], episodes: int, rng: np.random.Generator) -> Array:
    """Train a run of each row of the settings [runs]; return the greedy returns [runs, WEIGHTS, 2] of its tables."""
    runs = len(settings["rate"])
    rate, epsilon, discount, start = (np.repeat(settings[key], WEIGHTS) for key in DEFAULT)
    weight = np.tile(np.linspace(0, 1, WEIGHTS), runs)
    q = np.tile(start[:, None, None], (1, ROWS * COLUMNS, len(MOVES)))
    for _ in range(episodes):
        play(q, weight, epsilon, rng, rate, discount)
    return play(q, weight, np.zeros_like(epsilon), rng).reshape(runs, WEIGHTS, 2)


def play(
    q: Array, weight: Array, epsilon: Array, rng: np.random.Generator, rate: Array | None = None,
    discount: Array | None = None,
) -> Array:  # fmt: skip
    """Play an episode in each lane with its table q [lanes, states, moves], and return the returns [lanes, 2]; with a
    rate the tables learn from it, by a reward of the weight [lanes] on treasure and the rest on time."""
    lane, at = np.arange(len(q)), np.zeros((len(q), 2), np.int64)
    out, on = np.tile([0.0, 1.0], (len(q), 1)), np.ones(len(q), bool)
    for _ in range(LONGEST):
        state = at @ [COLUMNS, 1]
        ties = q[lane, state] + 1e-9 * rng.random((len(q), len(MOVES)))
        move = np.where(rng.random(len(q)) < epsilon, rng.integers(len(MOVES), size=len(q)), ties.argmax(1))
        to = np.clip(at + MOVES[move], 0, [ROWS - 1, COLUMNS - 1])
        to = np.where((to[:, 0] > DEPTHS[to[:, 1]])[:, None], at, to)  # the floor
        found = to[:, 0] == DEPTHS[to[:, 1]]
        gain = np.stack([found * TREASURES[to[:, 1]] / TREASURES.max(), np.full(len(q), -1 / LONGEST)], 1)
        out += gain * on[:, None]
        if rate is not None and discount is not None:
            reward = weight * gain[:, 0] + (1 - weight) * gain[:, 1]
            target = reward + discount * ~found * q[lane, to @ [COLUMNS, 1]].max(1)
            q[lane, state, move] += on * rate * (target - q[lane, state, move])
        at, on = np.where(on[:, None], to, at), on & ~found
        if not on.any():
            break
    return out


def measure_fronts(fronts: Array) -> Array:
    """Return the hypervolume [runs] of fronts [runs, n, 2] above the origin."""
    return np.array([compute_hypervolume(front, np.zeros(2)) for front in fronts])

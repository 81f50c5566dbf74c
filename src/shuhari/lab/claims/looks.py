"""Looks: a claim's seeds are made in groups, and it ends at the first whose interval says enough.

Looks at 5, 8 and 12 pairs with intervals of 99, 99 and 96.2 % exclude 0 in 5 % of claims without an effect (of the
kind of Haybittle, British Journal of Radiology 44, 1971, and Peto et al., British Journal of Cancer 34, 1976: strict
early looks, the rest for the last; simulated, Student's t). What looks can find is the minimum detectable effect (MDE):
the smallest that they find with 80 % power. All in units of the standard deviation of one pair's difference, of normal
pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from shuhari.lab.claims.verdict import Effect, Headline, Rule, Verdict

LOOKS = (5, 8, 12)  # pairs at each look
LEVELS: dict[tuple[int, ...], tuple[float, ...]] = {LOOKS: (0.99, 0.99, 0.962)}  # of the interval at each
LEVEL = 0.95  # of all looks together, and of a single one
POWER = 0.8
HOPELESS = 2.0  # margins: where no effect below this many of them could be found, seeds are saved
DRAWS = 400_000


def compute_levels(looks: Sequence[int]) -> tuple[float, ...]:
    """The level of the interval at each look. ValueError where looks have none."""
    if len(looks) == 1:
        return (LEVEL,)
    if tuple(looks) not in LEVELS:
        raise ValueError(f"looks are {list(looks)}: expected {list(LOOKS)}, or one number of seeds")
    return LEVELS[tuple(looks)]


@dataclass(frozen=True)
class Look:
    """What one look tells: the headline so far, the smallest effect that all looks could find, whether it is the last
    one that is made, and `why` if more would not help."""

    headline: Headline
    mde: float
    ends: bool
    why: str = ""


def judge_look(rule: Rule, effect: Effect, looks: Sequence[int], n: int, guard: Verdict | None = None) -> Look:
    """Judge a headline by its effect at the look at `n` pairs."""
    detectable = compute_mde(effect.sd, looks, rule.direction)
    headline = rule.judge_headline(effect, detectable, guard)
    if headline is Headline.OPEN and n < looks[-1] and is_hopeless(detectable, rule.margin):
        return Look(headline, detectable, True, f"{looks[-1]} seeds could find nothing below {HOPELESS:g} margins")
    return Look(headline, detectable, headline is not Headline.OPEN or n == looks[-1])


@dataclass(frozen=True)
class Power:
    """What looks can do. mde: for `up` and `down` the smallest effect that they find in `POWER` of claims (and, as it
    is the same, the tolerance within which `not lower` shows an arm that is no lower); equal: the tolerance within
    which they show two arms that are alike; enlarged: by how much an effect of the MDE is overstated by those claims
    that find it, a factor; pairs: how many are made for it on average. Standard deviations of one pair."""

    mde: float
    equal: float
    enlarged: float
    pairs: float


def compute_mde(sd: float, looks: Sequence[int], direction: str = "up") -> float:
    """The minimum detectable effect where one pair's difference has the standard deviation `sd`."""
    found = simulate_power(tuple(looks))
    return sd * (found.equal if direction == "equal" else found.mde)


def is_hopeless(detectable: float, margin: float) -> bool:
    """Whether more seeds are not worth their time."""
    return detectable > HOPELESS * margin


@cache
def simulate_power(looks: tuple[int, ...]) -> Power:
    """By simulation: the same normal pairs for every effect, as an effect only moves their mean."""
    mean, half = draw_trajectories(looks, DRAWS, seed=0)
    needed = half - mean  # [draws, looks] the effect from which each look excludes 0
    found = float(np.quantile(needed.min(1), POWER))
    alike = float(np.quantile((np.abs(mean) + half).min(1), POWER))
    ended = _find_first(needed < found)
    there = ended < len(looks)
    reported = np.take_along_axis(mean, np.minimum(ended, len(looks) - 1)[:, None], 1)[:, 0] + found
    pairs = np.array([*looks, looks[-1]])[ended]
    return Power(found, alike, float(reported[there].mean()) / found, float(pairs.mean()))


def find_chance(effect: float, looks: Sequence[int] = LOOKS) -> float:
    """The chance that looks find an effect of so many standard deviations."""
    mean, half = draw_trajectories(tuple(looks), DRAWS, seed=1)
    return float((half - mean < effect).any(1).mean())


def draw_trajectories(looks: Sequence[int], draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """([draws, looks] mean, half of its interval) of standard normal pairs, more of them from look to look: by group
    the mean and the sum of squares about it, which are independent."""
    from scipy.stats import t

    rng = np.random.default_rng(seed)
    mean, squares, before = np.zeros(draws), np.zeros(draws), 0
    means, halves = [], []
    for n, level in zip(looks, compute_levels(looks), strict=True):
        new = n - before
        middle = rng.standard_normal(draws) / math.sqrt(new)
        own = rng.chisquare(new - 1, draws) if new > 1 else np.zeros(draws)
        squares += own + (middle - mean) ** 2 * before * new / n
        mean = (before * mean + new * middle) / n
        means.append(mean)
        halves.append(t.ppf((1 + level) / 2, n - 1) * np.sqrt(squares / (n - 1) / n))
        before = n
    return np.stack(means, 1), np.stack(halves, 1)


def _find_first(flags: np.ndarray) -> np.ndarray:
    """[N] the first column of [N, K] that is true; K where none is."""
    return np.where(flags.any(1), flags.argmax(1), flags.shape[1])

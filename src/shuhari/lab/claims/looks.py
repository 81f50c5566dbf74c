"""Looks: a claim's seeds are run in groups, and it stops at the first group whose interval decides it.

Looks at 5, 8 and 12 pairs with intervals of 99, 99 and 96.2 % exclude 0 in 5 % of claims without an effect (after
Haybittle, British Journal of Radiology 44, 1971, and Peto et al., British Journal of Cancer 34, 1976: strict early
looks, the remaining error for the last; simulated, Student's t). The minimum detectable effect (MDE) is the smallest
effect that the looks find with 80 % power. All in units of the standard deviation of one pair's difference, for normal
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
LEVELS: dict[tuple[int, ...], tuple[float, ...]] = {LOOKS: (0.99, 0.99, 0.962)}  # of the interval at each look
LEVEL = 0.95  # of all looks together, and of a single one
POWER = 0.8
HOPELESS = 2.0  # margins: if the MDE is larger than this many, no more seeds are run
DRAWS = 400_000


def compute_levels(looks: Sequence[int]) -> tuple[float, ...]:
    """Return the level of the interval at each look. Raises ValueError for looks without levels."""
    if len(looks) == 1:
        return (LEVEL,)
    if tuple(looks) not in LEVELS:
        raise ValueError(f"looks are {list(looks)}: expected {list(LOOKS)}, or one number of seeds")
    return LEVELS[tuple(looks)]


@dataclass(frozen=True)
class Look:
    """The outcome of a look: the headline so far, the smallest effect that all looks could find, whether it is the last
    look, and `why` if more seeds would not help."""

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
    """What a schedule of looks can find, in standard deviations of one pair. mde: for `up` and `down`, the smallest
    effect found in `POWER` of claims (also the tolerance at which `not lower` shows an arm that is no lower). equal:
    the tolerance at which they show that two equal arms are alike. enlarged: the factor by which claims that find an
    effect of the MDE overstate it. pairs: the average number of pairs run for it."""

    mde: float
    equal: float
    enlarged: float
    pairs: float


def compute_mde(sd: float, looks: Sequence[int], direction: str = "up") -> float:
    """Return the minimum detectable effect if one pair's difference has the standard deviation `sd`."""
    found = simulate_power(tuple(looks))
    return sd * (found.equal if direction == "equal" else found.mde)


def is_hopeless(detectable: float, margin: float) -> bool:
    """Whether more seeds are not worth running."""
    return detectable > HOPELESS * margin


@cache
def simulate_power(looks: tuple[int, ...]) -> Power:
    """Simulate the power of looks. All effects use the same normal pairs, as an effect only shifts their mean."""
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
    """Return the probability that the looks find an effect of so many standard deviations."""
    mean, half = draw_trajectories(tuple(looks), DRAWS, seed=1)
    return float((half - mean < effect).any(1).mean())


def draw_trajectories(looks: Sequence[int], draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Simulate many claims (`draws`), whose pairs differ by standard normal numbers. Returns two arrays [draws, looks]:
    the mean difference of all pairs up to a look, and half the width of its interval. Pairs are not drawn one by one:
    the mean and the sum of squares of the pairs that a look adds are independent, and are drawn."""
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
    """Return [N] the first true column of [N, K]; K if there is none."""
    return np.where(flags.any(1), flags.argmax(1), flags.shape[1])

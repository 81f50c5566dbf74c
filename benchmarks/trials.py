"""Does the rule keep its word? Claims simulated from a baseline's noise: without an effect, and with a planted one.

Axes: `K` simulated claims, `S` seeds of a pool, `P` pairs of a claim; a pair is (an arm's value, the other's).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shuhari.kernel.stats import Estimate, wilson
from shuhari.lab.claims.looks import LOOKS, compute_levels, judge_look
from shuhari.lab.claims.verdict import HELD, Headline, Rule


@dataclass(frozen=True)
class Trial:
    """One simulated claim: its headline, and how many pairs were made."""

    headline: Headline
    pairs: int

    @property
    def excludes(self) -> bool:
        """Whether it says that two arms differ."""
        return self.headline in (*HELD, Headline.REVERSED)


@dataclass(frozen=True)
class Shares:
    """Of simulated claims, with Wilson's intervals: `excludes` that say that arms differ, `held` that say that the
    claim holds; `pairs` on average; `verdicts`, how often each."""

    excludes: Estimate
    held: Estimate
    pairs: float
    verdicts: dict[str, int]


def judge_pairs(rule: Rule, pairs: np.ndarray, looks: Sequence[int] = LOOKS) -> Trial:
    """What a claim on `pairs` [P, 2] says, look by look, and when it ends."""
    for n, level in zip(looks, compute_levels(looks), strict=True):
        look = judge_look(rule, rule.estimate(pairs[:n, 0], pairs[:n, 1], level), looks, n)
        if look.ends:
            return Trial(look.headline, n)
    raise AssertionError("the last look ends a claim")


def draw_pairs(
    pool: np.ndarray, claims: int, seed: int = 0, most: int = LOOKS[-1], *, by_lot: bool = True
) -> np.ndarray:
    """[K, P, 2] claims out of a `pool` [S, 2] of runs that are paired (a baseline and its redraw): other seeds each,
    drawn without replacement, and `by_lot` which side is the method. ValueError where the pool is too small."""
    pool = pool[np.isfinite(pool).all(1)]
    if len(pool) < most:
        raise ValueError(f"{len(pool)} pairs: expected at least {most}")
    rng = np.random.default_rng(seed)
    drawn = np.array([pool[rng.permutation(len(pool))[:most]] for _ in range(claims)])
    turned = (rng.random((claims, most)) < 0.5) & by_lot
    return np.where(turned[..., None], drawn[..., ::-1], drawn)


def plant(rule: Rule, pairs: np.ndarray, effect: float) -> np.ndarray:
    """The pairs with a true effect: the method's side better by so much, in the rule's direction (of a ratio, by that
    share of the other's)."""
    effect = -effect if rule.direction in ("down", "not higher") else effect
    more = effect * np.abs(pairs[..., 1]) if rule.ratio else effect
    return np.stack([pairs[..., 0] + more, pairs[..., 1]], -1)


def simulate(rule: Rule, pairs: Iterable[np.ndarray], looks: Sequence[int] = LOOKS) -> Shares:
    """What claims on `pairs` [K, P, 2] say. The ends of a metric are left aside: what is planted may lie beyond."""
    rule = replace(rule, range=())
    found = [judge_pairs(rule, one, looks) for one in pairs]
    told = Counter(t.headline.value for t in found)
    excludes, held = sum(t.excludes for t in found), sum(t.headline in HELD for t in found)
    mean = float(np.mean([t.pairs for t in found]))
    return Shares(wilson(excludes, len(found)), wilson(held, len(found)), mean, dict(told))

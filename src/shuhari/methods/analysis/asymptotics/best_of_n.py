"""Best-of-N beside the KL-optimal policy, exactly, as answers grow longer (Asymptotics of Language Model Alignment,
Yang et al. 2024, arXiv 2404.01730)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shuhari.bounds import Length, Positive, check
from shuhari.data import Array
from shuhari.kernel.registry import register

LETTERS = 3


@register("analysis", "asymptotics")
@dataclass
class Asymptotics:
    """How near best-of-N, with N the exponential of its KL, comes to the KL-optimal policy, as answers get longer;
    exact, nothing is trained.

    A seed draws a source of three letters and a reward of each in [0, 1]; an answer is m letters, its reward their sum.
    The KL-optimal policy at a KL of `rate` nats a letter is the tilt p exp(t r) / Z, letter by letter. Best-of-N draws
    N = exp(m rate) answers. Numbers, for each length m of 1, 4, 16, ... up to `longest`: `gap/<m>`, the tilt's expected
    reward a letter less that of best-of-N; `kl/<m>`, the KL of best-of-N, in nats a letter, which stays below
    (log N - (N - 1) / N) / m, and so below `rate`: far below it for short answers. `shrinks`: whether each gap is below
    the last.
    """

    rate: Positive = 0.1
    """KL in nats a letter; best-of-N draws exp(m rate) answers."""
    longest: Length = 256
    """Largest number of letters of an answer."""

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, seed: int) -> dict[str, float]:
        rng = np.random.default_rng([seed, LETTERS])
        p, r = rng.dirichlet(np.full(LETTERS, 2.0)), rng.random(LETTERS)
        rate = min(self.rate, 0.5 * -math.log(float(p[r.argmax()])))  # the best letter alone has -log p
        best = float(tilt(p, r, find_tilt(p, r, rate)) @ r)
        lengths = [4**i for i in range(int(math.log(self.longest, 4)) + 1)]
        out = dict[str, float]()
        for m in lengths:
            mean, kl = best_of(*list_sums(p, r, m), math.exp(m * rate))
            out |= {f"gap/{m}": best - mean / m, f"kl/{m}": kl / m}
        gaps = [out[f"gap/{m}"] for m in lengths]
        return {**out, "shrinks": float(all(b < a for a, b in pairwise(gaps)))}


def tilt(p: Array, r: Array, t: float) -> Array:
    """Return p exp(t r) / Z, of probabilities and rewards [n]."""
    logits = np.log(p) + t * r
    out: Array = np.exp(logits - logits.max())
    return out / out.sum()


def divergence(q: Array, p: Array) -> float:
    """Return KL(q || p) in nats; outcomes without a chance in q count 0."""
    kept = q > 0
    return float((q[kept] * np.log(q[kept] / p[kept])).sum())


def find_tilt(p: Array, r: Array, kl: float) -> float:
    """Return t > 0 at which the KL of the tilt is `kl`, by bisection; it rises with t up to -log of the best's
    probability. Raises ValueError if `kl` is not below that."""
    if not 0 < kl < -math.log(float(p[r == r.max()].sum())):
        raise ValueError(f"a KL of {kl}: expected one within (0, -log p(best))")
    low, high = 0.0, 1.0
    while divergence(tilt(p, r, high), p) < kl:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if divergence(tilt(p, r, middle), p) < kl else (low, middle)
    return (low + high) / 2


def list_sums(p: Array, r: Array, m: int) -> tuple[Array, Array]:
    """Return (probability, reward) of the sums of `m` letters, one for each count of the three letters."""
    a, b = (x.ravel() for x in np.meshgrid(np.arange(m + 1), np.arange(m + 1), indexing="ij"))
    a, b = a[a + b <= m], b[a + b <= m]
    counts = np.stack([a, b, m - a - b], axis=1)
    logs = np.concatenate([[0.0], np.log(np.arange(1, m + 1)).cumsum()])  # log k!
    log_p = logs[m] - logs[counts].sum(1) + counts @ np.log(p)
    return np.exp(log_p), counts @ r


def best_of(p: Array, r: Array, n: float) -> tuple[float, float]:
    """Return (expected reward, KL to p in nats) of the best of `n` draws from outcomes [k], by P(best <= r) = F(r)^n;
    outcomes of one reward share their mass as in p."""
    values, place = np.unique(r, return_inverse=True)
    mass = np.bincount(place, p, len(values))
    above = np.append(mass[::-1].cumsum()[::-1][1:], 0.0)  # P(reward > value)
    upto = np.exp(n * np.log1p(-np.minimum(above, 1 - 1e-16)))
    best = np.diff(upto, prepend=0.0)
    kept = (best > 0) & (mass > 0)
    kl = float((best[kept] * np.log(best[kept] / mass[kept])).sum())
    return float(best @ values), kl

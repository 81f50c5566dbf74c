"""How a policy-gradient step on a softmax moves probability: the mass balance of BroRL (arXiv 2510.01180).

Of V actions with probabilities p some are right (reward R_c >= 0), the others wrong (R_w <= 0). N draws sample a set of
distinct actions, A of them right and B wrong; U are the unsampled ones. The one-step analysis ascends the sum of R_i
p_i over the sampled actions, in the logits: with S = R_c P_A + R_w P_B (P: mass of a set),

    dz_i = rate / N p_i (R_i [i sampled] - S).

To first order the mass Q of the right actions moves by rate / N times

    (1 - Q) (R_c - S) A2  +  Q (S - R_w) B2  +  S (Q U_wrong2 - (1 - Q) U_right2),       X2 the sum of p² over X.

The first two terms, of sampled actions, are never negative; the third, of unsampled ones, may be, and goes to 0 as N
grows. The simulation takes many steps, on either of two surrogates, at one learning rate for all N: that of training,
the mean over all N draws of R p / p_old, where repeated actions count repeatedly; or, `distinct`, that of the analysis
above, 1 / N of the sum of R p over the sampled actions (a rate of V makes its first step from equal logits about as
long as the other's at 1). Leaves out the clip, KL terms and sequences: an action is a whole answer.

Axes: `V` actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shuhari.bounds import AtLeast0, Length, Positive, check
from shuhari.data import Array
from shuhari.kernel.registry import register

REWARDS = (1.0, -1.0)  # R_c, R_w


def softmax(z: Array) -> Array:
    """Returns [V] probabilities of logits."""
    e = np.exp(z - z.max())
    return e / e.sum()


def step(p: Array, gain: Array) -> Array:
    """Returns [V] the gradient in the logits of the surrogate sum of gain_i p_i, at probabilities p [V], with fixed
    gain [V]."""
    return p * (gain - gain @ p)


def balance(p: Array, right: Array, sampled: Array, rewards: tuple[float, float] = REWARDS) -> tuple[float, ...]:
    """Returns the three terms of the change of Q at rate / N = 1: of sampled right, sampled wrong and unsampled
    actions. Booleans right [V], sampled [V]; rewards (R_c, R_w)."""
    q, s = float(p[right].sum()), float(np.where(right, *rewards) * sampled @ p)

    def square(which: Array) -> float:
        return float((p[which] ** 2).sum())

    out = s * (q * square(~sampled & ~right) - (1 - q) * square(~sampled & right))
    return (1 - q) * (rewards[0] - s) * square(sampled & right), q * (s - rewards[1]) * square(sampled & ~right), out


@register("analysis", "mass_balance")
@dataclass
class MassBalance:
    """Simulates how policy-gradient steps with more samples per prompt keep right actions from losing probability
    (BroRL).

    A softmax over `actions` learns for `steps` from one start, `runs` times with each number of `samples`. Numbers:
    `lost/<N>`, the share of steps in which some right action loses probability; `fell/<N>`, that in which their mass Q
    falls; `mass/<N>`, the mean final Q; `falls`, the smallest drop of `lost` from one N to the next (above 0: it always
    falls).
    """

    actions: Length = 128
    """Number of actions (whole answers) of the softmax."""
    right: Length = 16
    """Number of right actions, with reward 1; the others have -1."""
    samples: tuple[Length, ...] = (8, 32, 128, 512)
    """Numbers of draws per step to compare, two or more, rising."""
    steps: Length = 100
    """Number of gradient steps of each simulation."""
    runs: Length = 32
    """Number of simulations to average over, for each number of draws."""
    rate: Positive = 1.0
    """Learning rate, the same for every number of draws."""
    spread: AtLeast0 = 0.0
    """Standard deviation of the initial logits; 0 makes them equal. With unequal ones small right actions lose to
    larger ones with any number of draws."""
    distinct: bool = False
    """Whether an action counts once per step however often it was drawn, as in the paper's analysis."""

    def __post_init__(self) -> None:
        check(self)
        if self.right >= self.actions:
            raise ValueError(f"right is {self.right}: expected 1 to {self.actions - 1}, for there are {self.actions}")
        if len(self.samples) < 2 or sorted({*self.samples}) != list(self.samples):
            raise ValueError(f"samples are {self.samples}: expected two or more numbers, rising")

    def __call__(self, seed: int) -> dict[str, float]:
        right = np.arange(self.actions) < self.right
        out: dict[str, float] = {}
        for n in self.samples:
            runs = np.array([self._run(seed, run, n, right) for run in range(self.runs)]).mean(0)
            out |= {f"{name}/{n}": float(x) for name, x in zip(("lost", "fell", "mass"), runs, strict=True)}
        shares = [out[f"lost/{n}"] for n in self.samples]
        return {**out, "falls": min(a - b for a, b in pairwise(shares))}

    def _run(self, seed: int, run: int, n: int, right: Array) -> tuple[float, float, float]:
        """Returns (lost, fell, mass) of one run, whose start is common to all n."""
        z = np.random.default_rng((seed, run)).normal(0, self.spread, self.actions)
        rng, reward, p = np.random.default_rng((seed, run, n)), np.where(right, *REWARDS), softmax(z)
        lost = fell = 0
        for _ in range(self.steps):
            drawn = rng.multinomial(n, p)
            z = z + self.rate * step(p, reward / n * ((drawn > 0) if self.distinct else drawn / p))
            before, p = p[right], softmax(z)
            lost, fell = lost + bool((p[right] < before).any()), fell + bool(p[right].sum() < before.sum())
        return lost / self.steps, fell / self.steps, float(p[right].sum())

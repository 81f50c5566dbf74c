"""Lower confidence bounds for offline data, beside the empirical best and imitation: contextual bandits and tables
(Bridging Offline Reinforcement Learning and Imitation Learning: A Tale of Pessimism, Rashidinejad et al. 2021, arXiv
2103.12021).

Axes: `S` states or contexts, `A` actions or arms, `D` data sets, `T` folds of the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from shuhari.bounds import Length, Positive, ProperShare, check
from shuhari.data import Array
from shuhari.kernel.registry import register

RULES = ("lcb", "best", "imitation")
DATA = ("expert", "mixed", "uniform")
SMALLEST, GROWTH = 64, 4  # numbers of samples: 64, 256, 1024, ...
MIXED = 1.5  # concentrability C* of mixed data
GAPS, SHARES = 7, 7  # points of the grids of instances
STATES, ACTIONS, START = 8, 3, 0.05  # tables; the share of uniform data that near-expert data of a table have
FEWER = 64  # tables are solved of this many times fewer transitions too


@register("analysis", "lcb_pessimism")
@dataclass
class LCBPessimism:
    """How fast the suboptimality of a pessimistic rule falls with more data, near-expert or uniform, beside the
    empirical best action and imitation; simulated, nothing is trained.

    Contextual bandits: two contexts, the rarer with a share from 1/N to 1/2, two arms with rewards 0 or 1, whose means
    differ by a gap from 1/sqrt(N) to 1. The suboptimality of a rule at N samples is its mean over data sets on the
    worst of these instances, as the paper's rates are minimax. `slope/<data>/<rule>` is the slope of its logarithm on
    log N, `regret/<data>/<rule>` its value at `largest` samples. Data, by concentrability C* = max of best policy's
    share over data's share: `expert`, N / (N - 1); `mixed`, 1.5, where all else is in one context; `uniform`, 2.
    Rules: `lcb`, mean less bonus; `best`, the empirical mean; `imitation`, the arm that was played most. The paper: lcb
    has -1 on expert data and -1/2 on others.

    Tables: random ones of 8 states and 3 actions. `table/<data>/<rule>/<n>` is the suboptimality, times 1 - gamma, at
    n = `transitions` transitions and a 64th of them, for VI-LCB, value iteration on the empirical model, and imitation;
    data are `expert`, the best policy's states and actions and 5 % uniform, or `uniform`.
    """

    largest: Length = 16_384
    """Largest number of samples of a bandit, at least 1024; others are 64, 256, ... up to it."""
    draws: Length = 400
    """Data sets of each instance."""
    scale: Positive = 0.5
    """Factor of log(2 S A N) in the squared bonus of one sample; 1/2 is Hoeffding's."""
    tables: Length = 2
    """Number of random tables."""
    transitions: Length = 2**20
    """Number of transitions of a table's data, at least 16,384."""
    gamma: ProperShare = 0.8
    """Discount of a table's rewards."""

    def __post_init__(self) -> None:
        check(self)
        if self.largest < 1024:
            raise ValueError(f"lcb_pessimism: largest {self.largest}: expected at least 1024, for a slope of 3 sizes")
        if self.transitions < 2**14:
            raise ValueError(f"lcb_pessimism: transitions {self.transitions}: expected at least {2**14}, for its folds")

    def __call__(self, seed: int) -> dict[str, float]:
        rng, out = np.random.default_rng([seed, 201]), dict[str, float]()
        sizes = [SMALLEST * GROWTH**i for i in range(int(math.log(self.largest / SMALLEST, GROWTH) + 1e-9) + 1)]
        for data in DATA:
            worst = np.stack([find_worst(data, n, self.draws, self.scale * math.log(8 * n), rng) for n in sizes])
            slopes = np.polyfit(np.log(sizes), np.log(np.maximum(worst, 1e-12)), 1)[0]
            out |= {f"slope/{data}/{rule}": float(slope) for rule, slope in zip(RULES, slopes, strict=True)}
            out |= {f"regret/{data}/{rule}": float(x) for rule, x in zip(RULES, worst[-1], strict=True)}
        found: dict[str, list[float]] = {}
        numbers = (self.transitions // FEWER, self.transitions)
        for data, n, _ in product(("expert", "uniform"), numbers, range(self.tables)):
            for rule, x in zip(RULES, self._solve_table(data, n, rng), strict=True):
                found.setdefault(f"table/{data}/{rule}/{n}", []).append(x)
        return out | {name: float(np.mean(xs)) for name, xs in found.items()}

    def _solve_table(self, data: str, n: int, rng: np.random.Generator) -> list[float]:
        """Return the suboptimality of the three rules on one random table, of `n` transitions."""
        moves = rng.dirichlet(np.full(STATES, 0.5), (STATES, ACTIONS))
        means, start = rng.random((STATES, ACTIONS)), np.full(STATES, 1 / STATES)
        expert = iterate_values(moves, means, self.gamma)
        uniform = np.full((STATES, ACTIONS), 1 / (STATES * ACTIONS))
        some = 1.0 if data == "uniform" else START
        share = (1 - some) * occupancy(moves, expert, start, self.gamma) + some * uniform
        folds = math.ceil(math.log(n) / (1 - self.gamma)) + 1
        law = (share[..., None] * moves).ravel()
        counts = rng.multinomial(n // folds, law / law.sum(), folds).reshape(folds, *moves.shape)
        sums = rng.binomial(counts.sum(-1), means)
        factor = self.scale * math.log(2 * STATES * ACTIONS * n)
        whole, visits = counts.sum(0), counts.sum((0, -1))
        model = whole / np.maximum(visits, 1)[..., None]
        policies = [
            vi_lcb(counts, sums, self.gamma, factor)[0],
            iterate_values(model, sums.sum(0) / np.maximum(visits, 1), self.gamma),
            visits.argmax(-1),
        ]
        best = start @ evaluate(moves, means, expert, self.gamma)
        gaps = [best - start @ evaluate(moves, means, policy, self.gamma) for policy in policies]
        return [float(gap * (1 - self.gamma)) for gap in gaps]


# ------------------------------------------------------------------------------------------------ bandits


def find_bonus(n: Array, factor: float) -> Array:
    """Return sqrt(factor / n) of numbers of samples, at most 1, which is the bonus of what was never played (Algorithms
    1 and 2)."""
    bonus: Array = np.minimum(np.sqrt(factor / np.maximum(n, 1)), 1.0)
    return np.where(n > 0, bonus, 1.0)


def rate_arms(n: Array, sums: Array, factor: float) -> dict[str, Array]:
    """Return what each rule thinks of arms, of their numbers of samples and summed rewards [..., A]."""
    mean = sums / np.maximum(n, 1)
    return {"lcb": mean - find_bonus(n, factor), "best": mean, "imitation": n.astype(float)}


def choose(values: Array) -> Array:
    """Return the chance of each arm, [..., A]: arms of the largest value share it."""
    top = values == values.max(-1, keepdims=True)
    out: Array = top / top.sum(-1, keepdims=True)
    return out


def list_data(data: str, n: int, share: float) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """Yield, for two contexts of shares 1 - `share` and `share`, the data's shares of the best arm and of the other arm
    by context: data of a concentrability put their rest into either context."""
    contexts = (1 - share, share)
    if data == "uniform":
        yield (contexts[0] / 2, contexts[1] / 2), (contexts[0] / 2, contexts[1] / 2)
        return
    good = 1 / MIXED if data == "mixed" else 1 - 1 / n
    best = (good * contexts[0], good * contexts[1])
    yield best, (1 - good, 0.0)
    yield best, (0.0, 1 - good)


def find_worst(data: str, n: int, draws: int, factor: float, rng: np.random.Generator) -> Array:
    """Return the suboptimality of each rule, [3], on the worst instance of `n` samples. The two contexts add up, so
    that each takes its worst gap."""
    gaps = np.geomspace(n**-0.5, 1, GAPS)
    worst = np.zeros(len(RULES))
    for share in np.geomspace(1 / n, 0.5, SHARES):
        for best, rest in list_data(data, n, float(share)):
            found = np.zeros(len(RULES))
            for mass, good, other in zip((1 - share, share), best, rest, strict=True):
                counts = rng.multinomial(n, [good, other, max(0.0, 1 - good - other)], (GAPS, draws))[..., :2]
                means = np.stack([0.5 + gaps / 2, 0.5 - gaps / 2], axis=-1)[:, None]
                values = rate_arms(counts, rng.binomial(counts, means), factor)
                wrong = np.stack([choose(values[rule])[..., 1].mean(-1) for rule in RULES])
                found += mass * (wrong * gaps).max(-1)
            worst = np.maximum(worst, found)
    return worst


# ------------------------------------------------------------------------------------------------ tables


def vi_lcb(counts: Array, sums: Array, gamma: float, factor: float) -> tuple[Array, list[Array]]:
    """Return VI-LCB's policy, [S], and its values after each fold, [S] each (Algorithm 3).

    counts: transitions by fold, [T + 1, S, A, S]; sums: their rewards, in [0, 1], [T + 1, S, A]. The first fold gives
    the first policy, the action that was played most; each other one gives one step of value iteration. A state whose
    value does not rise keeps value and action.
    """
    policy, value, values = counts[0].sum(-1).argmax(-1), np.zeros(counts.shape[1]), list[Array]()
    for fold, rewards in zip(counts[1:], sums[1:], strict=True):
        visits = np.maximum(fold.sum(-1), 1)
        bonus = np.sqrt(factor / visits) / (1 - gamma)
        q = rewards / visits - bonus + gamma * (fold @ value) / visits
        higher = q.max(-1) > value
        policy, value = np.where(higher, q.argmax(-1), policy), np.where(higher, q.max(-1), value)
        values.append(value)
    return policy, values


def iterate_values(moves: Array, means: Array, gamma: float) -> Array:
    """Return the best policy, [S], of transition chances [S, A, S] and mean rewards [S, A], by value iteration."""
    value = np.zeros(len(moves))
    for _ in range(math.ceil(math.log(1e-9) / math.log(gamma))):
        value = (means + gamma * moves @ value).max(-1)
    policy: Array = (means + gamma * moves @ value).argmax(-1)
    return policy


def evaluate(moves: Array, means: Array, policy: Array, gamma: float) -> Array:
    """Return the discounted value of a policy in each state, [S]."""
    rows = np.arange(len(policy))
    out: Array = np.linalg.solve(np.eye(len(policy)) - gamma * moves[rows, policy], means[rows, policy])
    return out


def occupancy(moves: Array, policy: Array, start: Array, gamma: float) -> Array:
    """Return the discounted share of each state and action under a policy, [S, A]; it sums to 1."""
    rows, out = np.arange(len(policy)), np.zeros(moves.shape[:2])
    out[rows, policy] = np.linalg.solve(np.eye(len(policy)) - gamma * moves[rows, policy].T, (1 - gamma) * start)
    return out

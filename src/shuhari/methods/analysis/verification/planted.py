"""Imitation of right traces beside RL on a learnt verifier, as traces get longer, exactly (Setlur et al. 2025, arXiv
2502.12118).

Axes: `S` styles of the base policy, `H` steps of a trace, `k` tokens of the planted subsequence, `n` traces."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shuhari.bounds import Length, Positive, check
from shuhari.data import Array
from shuhari.kernel.registry import register

FIRST = 16  # steps of the shortest traces
PACES = np.array([0.5, 2.0, 6.0])  # expected tokens of the subsequence that a style writes, in multiples of k
SHARES = np.array([0.6, 0.3, 0.1])
HALVINGS = 60


@register("analysis", "planted")
@dataclass
class Planted:
    """How far imitation of right traces falls behind RL on a learnt verifier as traces get longer; nothing is trained.

    A trace of H steps writes a hidden subsequence of `tokens` tokens, one with some probability at each step; it is
    solved from the step on that writes the last, and earns the share of its steps that are solved. The base policy
    mixes styles, slow and fast. Both learners get n = `per_step` H traces. The imitator gets right ones, and fits the
    probability of writing the next token at each (step, tokens written) by maximum likelihood; where it saw nothing it
    keeps the base's. The other labels base traces, learns which (step, tokens written) are solved, and is the policy
    that maximises this verifier at the KL of the base conditioned on right traces.

    Numbers, for H of 16, 32, ... up to `longest`: `imitation/<H>` and `verifier/<H>`, expected rewards in [0, 1], and
    `gap/<H>`, H times their difference, in steps; `one style/<H>`, the same gap if all traces have one style of the
    same mean pace. `exponent` is the slope of log gap on log H, and `exponent one style` that of the control. They are
    means over `draws` draws of the traces; the rest is exact.
    """

    tokens: Length = 3
    """Number of tokens of the planted subsequence."""
    longest: Length = 128
    """Largest number of steps of a trace."""
    per_step: Positive = 1.0
    """Number of traces that each learner gets, a step of a trace."""
    draws: Length = 20
    """Number of draws of these traces."""

    def __post_init__(self) -> None:
        check(self)
        if self.longest < 2 * FIRST:
            raise ValueError(f"planted: longest is {self.longest}: expected at least {2 * FIRST}, for a slope")

    def __call__(self, seed: int) -> dict[str, float]:
        horizons = [FIRST * 2**i for i in range(int(math.log2(self.longest / FIRST)) + 1)]
        out: dict[str, float] = {}
        gaps: dict[str, list[float]] = {"gap": [], "one style": []}
        for h in horizons:
            for name, paces, shares in (("gap", PACES, SHARES), ("one style", PACES @ SHARES[:, None], np.ones(1))):
                base = Base(np.minimum(paces * self.tokens / h, 1.0), shares, h, self.tokens)
                rng = np.random.default_rng([seed, h, len(shares)])
                n = max(1, round(self.per_step * h))
                found = np.array([compare(base, n, rng) for _ in range(self.draws)]).mean(0)
                gaps[name].append(float(h * (found[1] - found[0])))
                out |= {f"imitation/{h}": float(found[0]), f"verifier/{h}": float(found[1])} if name == "gap" else {}
                out[f"{name}/{h}"] = gaps[name][-1]
        logs = np.log(horizons)
        out["exponent"] = fit_slope(logs, gaps["gap"])
        out["exponent one style"] = fit_slope(logs, gaps["one style"])
        return out


@dataclass(frozen=True, eq=False)
class Base:
    """The base policy: `write` [S], the probability that a style writes the next token at a step; `shares` [S]; `steps`
    H and `tokens` k."""

    write: Array
    shares: Array
    steps: int
    tokens: int

    def list_chances(self, conditioned: bool = False) -> Array:
        """Return [S, H, k], the probability of writing the next token at each (step, tokens written), of the base or of
        the base conditioned on traces that end solved."""
        flat = np.broadcast_to(self.write[:, None, None], (len(self.write), self.steps, self.tokens))
        if not conditioned:
            return flat.copy()
        solve = self.find_solved()
        safe = np.where(solve[:, :-1, :-1] > 0, solve[:, :-1, :-1], 1.0)
        return flat * solve[:, 1:, 1:] / safe

    def find_solved(self) -> Array:
        """Return [S, H + 1, k + 1], the probability that a trace ends solved, from each (steps done, tokens
        written)."""
        out = np.zeros((len(self.write), self.steps + 1, self.tokens + 1))
        out[:, :, -1] = 1.0
        for h in reversed(range(self.steps)):
            p = self.write[:, None]
            out[:, h, :-1] = p * out[:, h + 1, 1:] + (1 - p) * out[:, h + 1, :-1]
        return out


def walk(chances: Array, shares: Array) -> Array:
    """Return [S, H + 1, k + 1], the probability of each (steps done, tokens written) with each style, of the chances to
    write [S, H, k]."""
    styles, steps, tokens = chances.shape
    out = np.zeros((styles, steps + 1, tokens + 1))
    out[:, 0, 0] = shares
    for h in range(steps):
        moved = out[:, h, :-1] * chances[:, h]
        out[:, h + 1] = out[:, h]
        out[:, h + 1, :-1] -= moved
        out[:, h + 1, 1:] += moved
    return out


def find_reward(chances: Array, shares: Array) -> float:
    """Return J = E[(1 / H) sum over h of r_h], where r_h is 1 from the step on that writes the last token."""
    return float(walk(chances, shares)[:, 1:, -1].sum() / chances.shape[1])


def condition(base: Base) -> tuple[Array, Array]:
    """Return (chances [S, H, k], shares [S]) of the base conditioned on traces that end solved."""
    shares = base.shares * base.find_solved()[:, 0, 0]
    return base.list_chances(conditioned=True), shares / shares.sum()


def draw_traces(chances: Array, shares: Array, n: int, rng: np.random.Generator) -> Array:
    """Return [n, H + 1], the tokens written after each number of steps."""
    styles, steps, tokens = chances.shape
    style = rng.choice(styles, n, p=shares)
    out = np.zeros((n, steps + 1), np.int64)
    for h in range(steps):
        at = out[:, h]
        p = np.where(at < tokens, chances[style, h, np.minimum(at, tokens - 1)], 0.0)
        out[:, h + 1] = at + (rng.random(n) < p)
    return out


def imitate(traces: Array, base: Base) -> Array:
    """Return [1, H, k], the maximum-likelihood chances of writing at each (step, tokens written) of right traces; where
    no trace was, those of the base."""
    before = walk(base.list_chances(), base.shares)[:, :-1, :-1]
    total = before.sum(0)
    out = (before * base.write[:, None, None]).sum(0) / np.where(total > 0, total, 1.0)
    for h in range(base.steps):
        for j in range(base.tokens):
            here = traces[:, h] == j
            if here.any():
                out[h, j] = (traces[here, h + 1] > j).mean()
    return out[None]


def learn_verifier(traces: Array, tokens: int) -> Array:
    """Return [H], 1.0 for the steps at which some labelled trace was solved: what it has never seen solved counts
    0."""
    return (traces[:, 1:] == tokens).any(0).astype(float)


def maximise(base: Base, solved: Array, kl: float) -> tuple[Array, Array]:
    """Return (chances [S, H, k], shares [S]) of the policy that maximises the verifier's reward at a KL to the base:
    its traces have the base's probability times exp(reward / beta) / Z."""
    low, high = 0.0, 1.0  # 1 / beta, a solved step
    while tilt(base, solved, high)[2] < kl and high < 1e4:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if tilt(base, solved, middle)[2] < kl else (low, middle)
    return tilt(base, solved, low)[:2]


def tilt(base: Base, solved: Array, strength: float) -> tuple[Array, Array, float]:
    """Return (chances [S, H, k], shares [S], KL to the base) of the tilt by `strength` a solved step."""
    log_z = np.zeros((len(base.write), base.steps + 1, base.tokens + 1))
    with np.errstate(divide="ignore"):
        write, wait = np.log(base.write)[:, None], np.log1p(-base.write)[:, None]
    chances = base.list_chances()
    for h in reversed(range(base.steps)):
        after = log_z[:, h + 1].copy()
        after[:, -1] += strength * solved[h]
        log_z[:, h, -1] = after[:, -1]
        log_z[:, h, :-1] = np.logaddexp(write + after[:, 1:], wait + after[:, :-1])
        chances[:, h] = np.exp(write + after[:, 1:] - log_z[:, h, :-1])
    logits = np.log(base.shares) + log_z[:, 0, 0]
    total = float(np.logaddexp.reduce(logits))
    shares = np.exp(logits - total)
    reward = float((walk(chances, shares)[:, 1:, -1].sum(0) * solved).sum())
    return chances, shares, strength * reward - total


def compare(base: Base, n: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return the expected rewards of the imitator and of RL on the verifier, each from n traces of its own."""
    chances, shares = condition(base)
    imitator = imitate(draw_traces(chances, shares, n, rng), base)
    kl = -math.log(float(base.shares @ base.find_solved()[:, 0, 0]))
    solved = learn_verifier(draw_traces(base.list_chances(), base.shares, n, rng), base.tokens)
    return find_reward(imitator, np.ones(1)), find_reward(*maximise(base, solved, kl))


def fit_slope(x: Array, gaps: list[float]) -> float:
    """Return the least-squares slope of log gap on x; NaN if a gap is not above 0."""
    return float(np.polyfit(x, np.log(gaps), 1)[0]) if min(gaps) > 0 else math.nan

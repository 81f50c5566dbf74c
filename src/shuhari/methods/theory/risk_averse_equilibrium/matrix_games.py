"""Equilibria of players who dislike the variance that the other player's choices cause, in matrix games (A
Game-Theoretic Framework for Managing Risk in Multi-Agent Systems, Slumbers et al. 2023, arXiv 2205.15434).

Payoffs are a matrix, own action by the other player's action. Left out: games of several steps and populations of
trained policies.

Axes: `G` games, `A` actions, `S` supports: subsets of actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import linprog

from shuhari.bounds import AtLeast0, Length, ShareBelow1, check
from shuhari.data import Array
from shuhari.kernel.registry import register

ACTIONS = 5  # of random games
STAG_HUNT = np.array([[1.0, 0.1], [0.8, 0.5]])  # stag, hare; hare is the better answer to an even chance of both
STARTS = 50  # first strategies in the stag hunt
RIDGE = 1e-9  # the best response is unique: of equal ones, that with the least norm


@register("analysis", "risk_averse_equilibrium")
@dataclass
class RiskAverseEquilibrium:
    """How much less a player's payoff varies in a risk-averse equilibrium than in a Nash equilibrium, and how much of
    the mean it costs; exact up to fictitious play, nothing is trained.

    Both come from fictitious play from a uniform start, with best responses to mean - gamma variance, gamma = 0 for
    Nash; but Nash of zero-sum games, which fictitious play nears slowly, is the solution of a linear programme. Payoffs
    lie within [0, 1]. Of random games of 5 actions, `symmetric` and `zero_sum` (payoffs sum to 1):
    `variance/<games>/<opponent>/<rule>` is the variance of the payoff over the opponent's actions, the player's own mix
    averaged, as in the paper; `total/...` that of one play, own mix included; `mean/...` the mean. Opponents: `met`,
    the opponent of the same equilibrium, and `unseen`, who chooses uniformly. Rules: `nash` and `rae`. `gap/<games>/
    <rule>` is how much better another strategy would be than the one found, by its own measure; 0 at an equilibrium.

    `hare/<rule>` is the share of 50 first strategies from which the stag hunt ends at the safe action, which is
    risk-dominant.
    """

    gamma: AtLeast0 = 2.5
    """Weight of the variance of the payoff."""
    tremble: ShareBelow1 = 0.05
    """Share of uniform choices that players expect in the other's strategy."""
    games: Length = 10
    """Number of random games of each kind."""
    rounds: Length = 200
    """Rounds of fictitious play."""

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, seed: int) -> dict[str, float]:
        rng, out = np.random.default_rng([seed, 179]), dict[str, float]()
        first = rng.random((self.games, ACTIONS, ACTIONS))
        kinds = {"symmetric": (first, first), "zero_sum": (first, 1 - first.swapaxes(1, 2))}
        uniform = np.full((self.games, ACTIONS), 1 / ACTIONS)
        for (kind, (own, other)), (rule, gamma) in product(kinds.items(), (("nash", 0.0), ("rae", self.gamma))):
            if kind == "zero_sum" and rule == "nash":
                mine, theirs = solve_zero_sum(own, self.tremble)
            else:
                mine, theirs = play(own, other, uniform, gamma, self.tremble, self.rounds)
            expected = add_tremble(theirs, self.tremble)
            for opponent, strategy in (("met", expected), ("unseen", uniform)):
                mean, variance, total = describe(own, mine, strategy)
                out[f"variance/{kind}/{opponent}/{rule}"] = float(variance.mean())
                out[f"total/{kind}/{opponent}/{rule}"] = float(total.mean())
                out[f"mean/{kind}/{opponent}/{rule}"] = float(mean.mean())
            best = measure_utility(own, respond(own, expected, gamma), expected, gamma)
            out[f"gap/{kind}/{rule}"] = float((best - measure_utility(own, mine, expected, gamma)).mean())
        chance = (np.arange(STARTS) + 0.5) / STARTS
        hunt, starts = np.broadcast_to(STAG_HUNT, (STARTS, 2, 2)), np.stack([chance, 1 - chance], axis=1)
        for rule, gamma in (("nash", 0.0), ("rae", self.gamma)):
            mine, _ = play(hunt, hunt, starts, gamma, self.tremble, self.rounds)
            out[f"hare/{rule}"] = float((mine[:, 1] > 0.5).mean())
        return out


def find_moments(payoffs: Array, strategy: Array) -> tuple[Array, Array]:
    """Return (mean [G, A], covariance [G, A, A]) of each action's payoff over the opponent's actions, of payoffs
    [G, A, B] and the opponent's strategies [G, B]."""
    mean = np.einsum("gab,gb->ga", payoffs, strategy)
    apart = payoffs - mean[..., None]
    return mean, np.einsum("gab,gcb,gb->gac", apart, apart, strategy)


def list_supports(n: int) -> Array:
    """Return every nonempty subset of `n` actions as rows of a mask, [2^n - 1, n]."""
    return (np.arange(1, 2**n)[:, None] >> np.arange(n)) % 2 == 1


def respond(payoffs: Array, strategy: Array, gamma: float) -> Array:
    """Return the best responses, [G, A]: argmax over the simplex of x m - gamma x C x, with m and C of `find_moments`.

    The conditions of Karush, Kuhn and Tucker are solved on each support, all of them at once, and the best feasible
    solution is kept; exact for a few actions.
    """
    mean, covariance = find_moments(payoffs, strategy)
    n, masks = mean.shape[-1], list_supports(mean.shape[-1])
    both = masks[:, :, None] & masks[:, None, :]  # [S, A, A]
    matrix = np.zeros((len(mean), len(masks), n + 1, n + 1))
    hessian = 2 * gamma * covariance + RIDGE * np.eye(n)
    matrix[..., :n, :n] = np.where(both, hessian[:, None], np.eye(n))
    matrix[..., :n, n] = matrix[..., n, :n] = masks
    target = np.ones((len(mean), len(masks), n + 1))
    target[..., :n] = np.where(masks, mean[:, None], 0.0)
    x = np.linalg.solve(matrix, target[..., None])[..., :n, 0]  # [G, S, A]
    value = np.einsum("gsa,ga->gs", x, mean) - 0.5 * np.einsum("gsa,gab,gsb->gs", x, hessian, x)
    best = np.where((x >= -1e-9).all(-1), value, -np.inf).argmax(-1)
    found = np.maximum(x[np.arange(len(mean)), best], 0.0)
    out: Array = found / found.sum(-1, keepdims=True)
    return out


def add_tremble(strategy: Array, tremble: float) -> Array:
    """Return strategies, [G, A], of which a share `tremble` is uniform."""
    return (1 - tremble) * strategy + tremble / strategy.shape[-1]


def play(
    own: Array, other: Array, start: Array, gamma: float, tremble: float, rounds: int
) -> tuple[Array, Array]:
    """Return both players' average strategies, [G, A] each, after fictitious play from `start`: each round, each adds
    its best response to the other's average, with weight 1 / (t + 1)."""
    mine, theirs = start, start
    for t in range(1, rounds + 1):
        a = respond(own, add_tremble(theirs, tremble), gamma)
        b = respond(other, add_tremble(mine, tremble), gamma)
        mine, theirs = mine + (a - mine) / (t + 1), theirs + (b - theirs) / (t + 1)
    return mine, theirs


def solve_zero_sum(payoffs: Array, tremble: float) -> tuple[Array, Array]:
    """Return both players' Nash strategies, [G, A] and [G, B], of games in which they get `payoffs` [G, A, B] and a
    constant less them, and each expects a share `tremble` of uniform choices.

    What a player gets by the other's tremble does not depend on the other's strategy. Added to both players' payoffs it
    leaves best responses as they are, and the game zero-sum.
    """
    game = (1 - tremble) * payoffs + tremble * (payoffs.mean(2, keepdims=True) + payoffs.mean(1, keepdims=True))
    return (
        np.stack([_secure(one) for one in game]),
        np.stack([_secure(-one.T) for one in game]),
    )


def _secure(payoffs: Array) -> Array:
    """Return the strategy, [A], whose least mean over the other's actions is largest, of one game's payoffs [A, B]."""
    a, b = payoffs.shape
    found = linprog(
        np.append(np.zeros(a), -1.0),  # the last variable is the least mean
        A_ub=np.hstack([-payoffs.T, np.ones((b, 1))]),
        b_ub=np.zeros(b),
        A_eq=np.append(np.ones(a), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * a + [(None, None)],
    )
    out: Array = found.x[:a]
    return out


def describe(payoffs: Array, mine: Array, theirs: Array) -> tuple[Array, Array, Array]:
    """Return (mean, variance over the opponent's actions, variance of one play) of the payoff, [G] each."""
    mean, covariance = find_moments(payoffs, theirs)
    whole = np.einsum("ga,ga->g", mean, mine)
    square = np.einsum("gab,ga,gb->g", payoffs**2, mine, theirs)
    return whole, np.einsum("ga,gab,gb->g", mine, covariance, mine), square - whole**2


def measure_utility(payoffs: Array, mine: Array, theirs: Array, gamma: float) -> Array:
    """Return mean - gamma variance of the payoff over the opponent's actions, [G]."""
    mean, variance, _ = describe(payoffs, mine, theirs)
    out: Array = mean - gamma * variance
    return out

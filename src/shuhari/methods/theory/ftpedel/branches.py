"""Layered decision processes of which only counts are drawn, and a world of two branches.

Axes: `H` steps of an episode; `S` states; `A` actions; `N` policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from shuhari.data import Array

ACTIONS = 2
LEFT, RIGHT = range(2)  # branches, and the first actions that lead into them


@dataclass(frozen=True, eq=False)
class Counts:
    """What was seen: `moves` [H, S, A, S], numbers of transitions (of the last step too), and `rewards` [H, S, A], the
    sums of their rewards. The number of visits [H, S, A] is `moves.sum(-1)`."""

    moves: Array
    rewards: Array

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.moves + other.moves, self.rewards + other.rewards)


@dataclass(frozen=True, eq=False)
class World:
    """`moves` [H, S, A, S]: chances of the next states; `means` [H, S, A]: chances of a reward of 1; `start` [S]:
    chances of the first states."""

    moves: Array
    means: Array
    start: Array

    def no_counts(self) -> Counts:
        return Counts(np.zeros(self.moves.shape), np.zeros(self.means.shape))

    def play(self, policy: Array, n: int, rng: np.random.Generator) -> Counts:
        """Return the counts of `n` episodes of a policy [H, S] of actions. Their joint law is that of single episodes:
        those that are in one place move on independently of how they came there."""
        counts = self.no_counts()
        at = rng.multinomial(n, self.start)
        for h in range(len(self.moves)):
            for s, a in enumerate(policy[h]):
                counts.moves[h, s, a] = rng.multinomial(at[s], self.moves[h, s, a])
                counts.rewards[h, s, a] = rng.binomial(at[s], self.means[h, s, a])
            at = counts.moves[h].sum((0, 1)).astype(int)
        return counts

    def evaluate(self, policies: Array) -> Array:
        """Return the values, [N], of policies [N, H, S] from the start."""
        rows, value = np.arange(self.start.size), np.zeros((len(policies), self.start.size))
        for h in reversed(range(len(self.moves))):
            a = policies[:, h]
            value = self.means[h, rows, a] + np.einsum("nst,nt->ns", self.moves[h, rows, a], value)
        out: Array = value @ self.start
        return out


def draw_world(horizon: int, width: int, rng: np.random.Generator) -> World:
    """Draw a world. The first action leads into a branch, among whose `width` states one moves at random, by chances
    that depend on the action; the last step pays 1 with a chance of its own. States: the root, then those of the left
    branch and of the right one."""
    size = 1 + 2 * width
    moves, means = np.zeros((horizon, size, ACTIONS, size)), np.zeros((horizon, size, ACTIONS))
    moves[0, 1:, :, 1:] = 1 / (size - 1)  # never used: episodes begin at the root
    moves[1:, 0, :, 0] = 1
    for branch in (LEFT, RIGHT):
        inside = slice(1 + branch * width, 1 + (branch + 1) * width)
        moves[0, 0, branch, inside] = rng.dirichlet(np.ones(width))
        moves[1:, inside, :, inside] = rng.dirichlet(np.ones(width), (horizon - 1, width, ACTIONS))
    means[-1, 1:] = rng.random((size - 1, ACTIONS))
    return World(moves, means, np.eye(size)[0])


def list_policies(horizon: int, width: int) -> Array:
    """Return the class, [N, H, S] of actions: a branch, then any actions in its states at each later step."""
    out = list[Array]()
    for branch, actions in product((LEFT, RIGHT), product(range(ACTIONS), repeat=(horizon - 1) * width)):
        policy = np.zeros((horizon, 1 + 2 * width), int)
        policy[0, 0] = branch
        policy[1:, 1 + branch * width : 1 + (branch + 1) * width] = np.reshape(actions, (horizon - 1, width))
        out.append(policy)
    return np.stack(out)

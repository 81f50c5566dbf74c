"""Layered decision processes whose episodes can be drawn by the thousand, and exact values of policies in them.

Axes: `H` steps of an episode, which are layers of states; `S` states of a layer; `A` actions; `E` episodes; `N`
policies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shuhari.data import Array

CORE, AWAY = 0, 1  # actions: what the core policy does everywhere, and the deviation
GOOD, BAD, EVEN = 0.9, 0.1, 0.5  # chances of reward at the end, by where the episode is


@dataclass(frozen=True)
class Layered:
    """`moves` [H, S, A, S]: chances of the next layer's states (the last layer's are not used); `means` [H, S, A]:
    chance of reward 1 at a step; `start` [S]: chances of the first layer's states."""

    moves: Array
    means: Array
    start: Array

    def play(self, first: Array, actions: Array, rng: np.random.Generator, begin: int = 0) -> tuple[Array, Array]:
        """Return (states [E, H - begin], returns [E]) of episodes from states `first` [E] of layer `begin`, by fixed
        sequences of actions [E, H - begin]."""
        states, at, total = [], first, np.zeros(len(first))
        for h in range(begin, len(self.moves)):
            states.append(at)
            a = actions[:, h - begin]
            total += rng.random(len(at)) < self.means[h, at, a]
            at = draw(self.moves[h, at, a], rng)
        return np.stack(states, axis=1), total

    def evaluate(self, policies: Array) -> Array:
        """Return the values, [N], of policies [N, H, S] from the start."""
        rows, value = np.arange(self.start.size), np.zeros((len(policies), self.start.size))
        for h in reversed(range(len(self.moves))):
            a = policies[:, h]
            value = self.means[h, rows, a] + np.einsum("nst,nt->ns", self.moves[h, rows, a], value)
        out: Array = value @ self.start
        return out

    def solve(self) -> float:
        """Return the value of the best of all policies."""
        value = np.zeros(self.start.size)
        for h in reversed(range(len(self.moves))):
            value = (self.means[h] + self.moves[h] @ value).max(-1)
        return float(value @ self.start)


def draw(chances: Array, rng: np.random.Generator) -> Array:
    """Return one place a row, [E], by chances [E, S]."""
    out: Array = (rng.random(len(chances))[:, None] > chances.cumsum(-1)[:, :-1]).sum(-1)
    return out


def draw_world(horizon: int, width: int, rng: np.random.Generator) -> Layered:
    """Draw a world. The core's action moves among `width` states at random. The other action leaves them for good, to a
    state with reward chance 0.9 at the end or to one with 0.1, by chances of its own; among the states it is 0.5."""
    size = width + 2
    good, bad = width, width + 1
    moves, means = np.zeros((horizon, size, 2, size)), np.zeros((horizon, size, 2))
    moves[:, :width, CORE, :width] = rng.dirichlet(np.ones(width), (horizon, width))
    luck = rng.random((horizon, width))
    moves[:, :width, AWAY, good], moves[:, :width, AWAY, bad] = luck, 1 - luck
    moves[:, good, :, good] = moves[:, bad, :, bad] = 1.0
    means[-1, :width, CORE], means[-1, :width, AWAY] = EVEN, BAD + (GOOD - BAD) * luck[-1]
    means[-1, good], means[-1, bad] = GOOD, BAD
    return Layered(moves, means, np.append(rng.dirichlet(np.ones(width)), [0.0, 0.0]))

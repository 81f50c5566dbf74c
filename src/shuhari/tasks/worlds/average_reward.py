"""The best gain (mean reward per step) of a table of transitions, known exactly or within bounds.

Source: Jaksch, Ortner and Auer, "Near-optimal Regret Bounds for Reinforcement Learning" (JMLR 2010), section 3.1:
extended value iteration, and figure 2: the best transitions within a distance.

Axes: `S` states, `A` actions.
"""

from __future__ import annotations

import numpy as np

from shuhari.data import Array


def best_transitions(p: Array, distance: Array, value: Array) -> Array:
    """Returns [..., S] the distributions within an L1 distance [...] of p [..., S] that have the highest mean of value
    [S]: half of the distance moves to the best state, from the worst ones."""
    order = np.argsort(value, kind="stable")
    q = p[..., order]
    q[..., -1] = np.minimum(1.0, q[..., -1] + distance / 2)
    excess = q.sum(-1, keepdims=True) - 1.0
    kept = np.minimum(q, np.maximum(q.cumsum(-1) - excess, 0.0))  # the worst lose all, until the excess is gone
    out = np.empty_like(kept)
    out[..., order] = kept
    return out


def extended_value_iteration(
    reward: Array, p: Array, distance: Array, tolerance: float, start: Array | None = None, limit: int = 100_000
) -> tuple[float, Array, Array]:
    """Returns (gain, greedy action [S], relative value [S]) of the best of all tables that have the rewards [S, A] and
    transitions within the L1 distance [S, A] of p [S, A, S]; distance 0: of that table. The gain is accurate to
    `tolerance`. start: the initial values [S]. Raises ArithmeticError after `limit` sweeps: the best policy may be
    periodic."""
    value = np.zeros(len(reward)) if start is None else start
    for _ in range(limit):
        q = reward + best_transitions(p, distance, value) @ value
        new = q.max(1)
        step = new - value
        if step.max() - step.min() < tolerance:
            return float(step.max() + step.min()) / 2, q.argmax(1), new - new.min()
        value = new - new.min()
    raise ArithmeticError(f"value iteration has not come within {tolerance:g} in {limit} sweeps")

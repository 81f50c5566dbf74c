"""Tables with a finite horizon: values of policies that may differ from step to step, and Q-value iteration from the
random policy's values.

Source: Laidlaw, Zhu, Russell and Dragan, "The Effective Horizon Explains Deep RL Performance in Stochastic
Environments" (2024), definition 3.1 (k-QVI-solvable).

Axes: `T` steps, `P` places, `A` actions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shuhari.data import Array


class Table(NamedTuple):
    """Transitions p [P, A, P] and rewards r [P, A] of a step, the first place of episodes, and their number of steps.
    The state of step t at place s is t * P + s."""

    p: Array
    r: Array
    first: int
    horizon: int


def evaluate_policy(p: Array, r: Array, policy: Array) -> Array:
    """Returns [T, P, A] the values Q of actions, followed by the policy [T, P, A] (probabilities), in a table with
    transitions p [P, A, P] and rewards r [P, A]."""
    q, value = np.zeros(policy.shape), np.zeros(len(r))
    for t in reversed(range(len(policy))):
        q[t] = r + p @ value
        value = (policy[t] * q[t]).sum(1)
    return q


def iterate_from_random(p: Array, r: Array, horizon: int, k: int) -> Array:
    """Returns [T, P, A] Q^k: the values of the random policy after k - 1 steps of Q-value iteration. Q^T are
    optimal."""
    q = evaluate_policy(p, r, np.full((horizon, *r.shape), 1 / r.shape[1]))
    for _ in range(min(k, horizon) - 1):
        value = np.concatenate([q.max(2), np.zeros((1, len(r)))])
        q = r + np.einsum("sax,tx->tsa", p, value[1:])
    return q


def act_greedily(q: Array) -> Array:
    """Returns [T, P, A] the policy that takes the best action, the first of a tie."""
    policy: Array = np.eye(q.shape[2])[q.argmax(2)]
    return policy

"""The exact value of a policy of few coupled arms, and of those that look one step ahead, act at random, or are best.

Axes: `J` arms, `S` states of an arm, `F` feasible actions. A value is of all S^J joint states, an array of J axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from shuhari.bounds import Count, Discount, check
from shuhari.data import Array
from shuhari.kernel.registry import register
from shuhari.methods.theory.sequoia.embedding import maximise
from shuhari.methods.theory.sequoia.joint_q import JointQ
from shuhari.methods.theory.sequoia.restless import Arms
from shuhari.needs import role_model
from shuhari.ports import Ctx, ability

MOST = 100_000  # joint states
Rule = Callable[[Array], Array]  # values of actions [F, S, ...] -> values [S, ...]


@register("metric", "arm_values")
@dataclass
class ArmValues:
    """The exact expected discounted return of a greedy `joint_q` policy in the world `restless`, of few arms.

    `value`: that of the policy, over an episode; `myopic`: of the best expected reward of the next step, with the true
    chances; `random`: of uniformly random feasible actions; `constant`: of the best action that is repeated at every
    step; `best`: of the best policy, by dynamic programming; `gain`: value less myopic. `patient`: share of joint
    states where the policy's action does not have the best reward of the next step. `gap`: largest difference, over
    `probes` joint states, of the optimum of the mixed-integer programme and the network's best value of all feasible
    actions. Raises TypeError for another task or policy, ValueError for more than 100,000 joint states, or feasible
    actions that are not listed.
    """

    role: str = "policy"
    """Role of the policy that is evaluated."""
    gamma: Discount = 0.99
    """Discount of the return."""
    probes: Count = 0
    """Number of joint states, evenly spaced, in which the mixed-integer programme is solved; 0 reports no `gap`."""

    def __post_init__(self) -> None:
        check(self)
        self._known: tuple[Any, dict[str, float]] | None = None  # of the current table

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __call__(self, ctx: Ctx) -> Mapping[str, float]:
        table, policy = ability(ctx.task, "table"), role_model(ctx.models, self.role)
        if not isinstance(table, Arms) or not isinstance(policy, JointQ):
            raise TypeError(f"metric arm_values: the task is {type(ctx.task).__name__} and the policy "
                            f"{type(policy).__name__}: expected the world `restless`, and a `joint_q`")  # fmt: skip
        J, S = table.worth.shape
        actions = table.coupling.listed
        if S**J > MOST or actions is None:
            raise ValueError(f"metric arm_values: {S}^{J} joint states: expected at most {MOST}, and listed actions")
        rewards = find_rewards(table, actions)
        if self._known is None or self._known[0] is not table:
            self._known = table, self._evaluate_others(table, actions, rewards)
        seen = torch.tensor(list(product(range(S), repeat=J))) / (S - 1)
        index = find_index(policy.find_best(seen).numpy(), actions).reshape((S,) * J)
        value = self._evaluate(table, actions, rewards, lambda q: np.take_along_axis(q, index[None], 0)[0])
        short = rewards.max(0) - np.take_along_axis(rewards, index[None], 0)[0]
        out = {"value": value, "gain": value - self._known[1]["myopic"], "patient": float((short > 1e-9).mean())}
        if self.probes:
            out["gap"] = probe(policy, seen[np.linspace(0, len(seen) - 1, self.probes).astype(int)], actions)
        return {**out, **self._known[1]}

    def _evaluate_others(self, table: Arms, actions: Array, rewards: Array) -> dict[str, float]:
        ahead = rewards.argmax(0)[None]
        rules: dict[str, Rule] = {
            "myopic": lambda q: np.take_along_axis(q, ahead, 0)[0],
            "random": lambda q: q.mean(0),
            "best": lambda q: q.max(0),
        }
        out = {name: self._evaluate(table, actions, rewards, rule) for name, rule in rules.items()}
        each = [self._evaluate(table, a[None], r[None], lambda q: q[0]) for a, r in zip(actions, rewards, strict=True)]
        return {**out, "constant": max(each)}

    def _evaluate(self, table: Arms, actions: Array, rewards: Array, rule: Rule) -> float:
        """Returns the value, at the start, of the rule that makes a value of the values of the actions [F, S, ...]."""
        value = np.zeros(rewards.shape[1:])
        for _ in range(table.horizon):
            later = np.stack([expect(table, value, action) for action in actions])
            value = rule(rewards + self.gamma * later)
        return float(value[(slice(2),) * len(table.worth)].mean())


def probe(policy: JointQ, seen: torch.Tensor, actions: Array) -> float:
    """Returns the largest difference, over observations [P, J], of the optimum of the mixed-integer programme and the
    best value of all `actions` [F, J]."""
    listed, layers, gaps = torch.from_numpy(actions), policy.read_layers(), []
    for x in seen:
        with torch.no_grad():
            best = float(policy.rate(x.expand(len(listed), -1), listed).max())
        gaps.append(abs(maximise(policy.embed(layers, x.double().numpy()), policy.coupling)[1] - best))
    return max(gaps)


def find_rewards(table: Arms, actions: Array) -> Array:
    """Returns [F, S, ..., S] the expected reward of each action [F, J] in each joint state."""
    J, S = table.worth.shape
    single = np.einsum("jast,jt->jas", table.moves, table.worth)
    axes = np.eye(J, dtype=int) * (S - 1) + 1  # arm j's row has S on axis j and 1 elsewhere
    rows = list[Array]()
    for action in actions.astype(int):
        rows.append(sum((single[j, a].reshape(axes[j]) for j, a in enumerate(action)), np.zeros((S,) * J)))
    return np.stack(rows)


def expect(table: Arms, value: Array, action: Array) -> Array:
    """Returns the expected value of the next joint state, in each joint state, after an action [J]."""
    for j, a in enumerate(action.astype(int)):
        value = np.moveaxis(np.tensordot(table.moves[j, a], value, (1, j)), 0, j)
    return value


def find_index(chosen: Array, actions: Array) -> Array:
    """Returns [B] the places of actions [B, J] of bits among `actions` [F, J]."""
    bits = 2 ** np.arange(actions.shape[1])
    place = np.full(2 ** actions.shape[1], -1)
    place[(actions @ bits).astype(int)] = np.arange(len(actions))
    out: Array = place[(chosen @ bits).astype(int)]
    return out

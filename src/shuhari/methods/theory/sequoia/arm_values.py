"""The exact value of a policy of few coupled arms, and of those that look one step ahead, act at random, or are best.

Axes: `J` arms, `S` states of an arm, `F` feasible actions. A value is of all S^J joint states, an array of J axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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


@register("metric", "arm_values")
@dataclass
class ArmValues:
    """The exact expected discounted return of a greedy `joint_q` policy in the world `restless`, of few arms.

    `value`: that of the policy, over an episode; `myopic`: of the best expected reward of the next step, with the true
    chances; `random`: of uniformly random feasible actions; `constant`: of the best action that is repeated at every
    step; `best`: of the best policy, by dynamic programming; `gain`: value less myopic. `patient`: share of joint states where the policy's action does not have the best reward of the
    next step. `gap`: largest difference, over `probes` joint states, of the optimum of the mixed-integer programme and
    the network's best value of all feasible actions. Raises TypeError for another task or policy, ValueError for more
    than 100,000 joint states, or feasible actions that are not listed.
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
        rewards = find_rewards(table)
        if self._known is None or self._known[0] is not table:
            self._known = table, self._evaluate_others(table, rewards)
        seen = torch.tensor(list(product(range(S), repeat=J))) / (S - 1)
        index = find_index(policy.find_best(seen).numpy(), actions).reshape((S,) * J)
        value = self._evaluate(table, rewards, lambda q: np.take_along_axis(q, index[None], 0)[0])
        short = rewards.max(0) - np.take_along_axis(rewards, index[None], 0)[0]
        out = {"value": value, "gain": value - self._known[1]["myopic"], "patient": float((short > 1e-9).mean())}
        if self.probes:
            out["gap"] = self._probe(policy, seen[np.linspace(0, len(seen) - 1, self.probes).astype(int)])
        return {**out, **self._known[1]}

    def _evaluate_others(self, table: Arms, rewards: Array) -> dict[str, float]:
        ahead = rewards.argmax(0)[None]
        rules = {
            "myopic": lambda q: np.take_along_axis(q, ahead, 0)[0],
            "random": lambda q: q.mean(0),
            "best": lambda q: q.max(0),
        }
        out = {name: self._evaluate(table, rewards, rule) for name, rule in rules.items()}
        alone = [table._replace(coupling=replace(table.coupling, listed=a[None])) for a in table.coupling.listed]
        each = [self._evaluate(one, rewards[i : i + 1], lambda q: q[0]) for i, one in enumerate(alone)]
        return {**out, "constant": max(each)}

    def _evaluate(self, table: Arms, rewards: Array, rule: Any) -> float:
        """Returns the value, at the start, of the rule that makes a value of the actions' values [F, ...]."""
        value = np.zeros(rewards.shape[1:])
        for _ in range(table.horizon):
            value = rule(np.stack([r + self.gamma * expect(table, value, a)
                                   for r, a in zip(rewards, table.coupling.listed, strict=True)]))  # fmt: skip
        return float(value[(slice(2),) * len(table.worth)].mean())

    def _probe(self, policy: JointQ, seen: torch.Tensor) -> float:
        with torch.no_grad():
            best = [float(policy.rate(x.expand(len(listed), -1), listed).max())
                    for listed in [torch.from_numpy(policy.coupling.listed)] for x in seen]  # fmt: skip
        layers = policy.read_layers()
        found = [maximise(policy.embed(layers, x), policy.coupling)[1] for x in seen.double().numpy()]
        return float(np.abs(np.array(found) - best).max())


def find_rewards(table: Arms) -> Array:
    """Returns [F, S, ..., S] the expected reward of each feasible action in each joint state."""
    J, S = table.worth.shape
    single = np.einsum("jast,jt->jas", table.moves, table.worth)
    axes = np.eye(J, dtype=int) * (S - 1) + 1  # arm j's row has S on axis j and 1 elsewhere
    rows = []
    for action in table.coupling.listed:
        rows.append(sum(single[j, a].reshape(axes[j]) for j, a in enumerate(action.astype(int))))
    return np.stack(rows)


def expect(table: Arms, value: Array, action: Iterable[float]) -> Array:
    """Returns the expected value of the next joint state, in each joint state, after an action [J]."""
    for j, a in enumerate(action):
        value = np.moveaxis(np.tensordot(table.moves[j, int(a)], value, (1, j)), 0, j)
    return value


def find_index(chosen: Array, actions: Array) -> Array:
    """Returns [B] the places of actions [B, J] of bits among `actions` [F, J]."""
    bits = 2 ** np.arange(actions.shape[1])
    place = np.full(2 ** actions.shape[1], -1)
    place[(actions @ bits).astype(int)] = np.arange(len(actions))
    out: Array = place[(chosen @ bits).astype(int)]
    return out

"""Restless bandits whose arms are coupled: whoever acts on some of them has a budget, and workers with capacities.

Source: Xu et al., "Reinforcement learning with combinatorial actions for coupled restless bandits" (2025), the
capacity-constrained domain of its code, here with a budget too. Left out: its domains of paths, schedules and several
interventions.

Axes: `J` arms, `S` states of an arm, `W` workers, `F` feasible joint actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.bounds import Bounds, Length, Seed, Share, check
from shuhari.data import Array, code
from shuhari.kernel.registry import register
from shuhari.methods.theory.sequoia.embedding import Coupling

LISTED = 12  # arms up to which feasible actions are listed


class Arms(NamedTuple):
    """What the arms do: `moves` [J, 2, S, S], chances of the next state without and with an action; `worth` [J, S], the
    reward of being in a state; the `coupling` of their actions; the number of steps of an episode."""

    moves: Array
    worth: Array
    coupling: Coupling
    horizon: int


@register("world", "restless")
@dataclass(eq=False)
class Restless(gymnasium.Env[Any, Any]):
    """Restless bandits with coupled arms: at each step, some arms are acted on, and all arms move.

    An arm that is acted on moves a state up with a large chance, and down otherwise; another one stays where it is with
    chance `hold`, and else moves up with a small chance, and down otherwise. The reward is the expected worth of the
    next states. The best state of the first `budget` arms is worth most, but their worth falls on the way to it, so
    that looking one step ahead chooses the others. At most `budget` arms are acted on, each by a worker at a cost; the
    costs of a worker's arms are within its capacity. An action that is not feasible acts on no arm. Episodes are cut
    off after `horizon` steps.

    Action: a bit for each arm. Observation [J]: the states divided by S - 1. Arms begin in the lowest two states, at
    random. `table` is an `Arms`.
    """

    arms: Annotated[int, Bounds(2, 100)] = 8
    """Number of arms; up to 12, all feasible actions are listed."""
    states: Annotated[int, Bounds(3, 20)] = 3
    """Number of states of an arm."""
    budget: Length = 4
    """Number of arms that may be acted on at a step, below the number of arms."""
    workers: Length = 3
    """Number of workers."""
    hold: Share = 0.7
    """Chance that an arm that is not acted on stays where it is, in [0, 1]. At 0, as in the paper's code, arms fall so
    fast that the best policy acts on the same arms at every step."""
    horizon: Length = 20
    """Number of steps after which an episode is cut off."""
    instance: Seed = 10
    """Seed of the chances, worths, costs and capacities; each number is another problem."""

    def __post_init__(self) -> None:
        check(self)
        if self.budget >= self.arms:
            raise ValueError(f"restless: budget is {self.budget}: expected less than the {self.arms} arms")
        rng = np.random.default_rng(code("restless", self.instance))
        J, S, B = self.arms, self.states, self.budget
        up = np.stack([rng.uniform(0, 0.2, J), rng.uniform(0.7, 0.9, J)], 1)[..., None]  # [J, 2, 1]
        moves, s = np.zeros((J, 2, S, S)), np.arange(S)
        moves[:, :, s, np.minimum(s + 1, S - 1)] += up
        moves[:, :, s, np.maximum(s - 1, 0)] += 1 - up
        moves[:, 0] = self.hold * np.eye(S) + (1 - self.hold) * moves[:, 0]
        worth = np.tile(np.append(np.linspace(0.1, 0.2, S - 1), 0.0), (J, 1))
        worth[:B, :-1] = worth[:B, -2::-1]
        worth[:, -1] = np.append(rng.integers(4, 7, B), rng.integers(1, 4, J - B))
        self.costs, self.capacities = rng.integers(2, 7, J), rng.integers(2, 8, self.workers)
        listed = None
        if J <= LISTED:
            listed = np.array([a for a in product((0, 1), repeat=J) if self.allows(np.array(a))], float)
        self.table = Arms(moves, worth, self._couple(listed), self.horizon)
        self.observation_space = spaces.Box(0.0, 1.0, (J,), np.float32)
        self.action_space = spaces.MultiBinary(J)
        self.at, self.state = 0, np.zeros(J, int)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.state = 0, self.np_random.integers(2, size=self.arms)
        return self._observe(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        acts = np.asarray(action, int)
        chances = self.table.moves[np.arange(self.arms), acts * self.allows(acts), self.state]  # [J, S]
        reward = float((chances * self.table.worth).sum())
        self.state = (self.np_random.random((self.arms, 1)) > chances.cumsum(1)[:, :-1]).sum(1)
        self.at += 1
        return self._observe(), reward, False, self.at >= self.horizon, {}

    def allows(self, action: Array) -> bool:
        """Whether an action [J] of bits is within the budget and the workers can share it out."""
        costs = sorted(self.costs[np.asarray(action) > 0].tolist(), reverse=True)
        return len(costs) <= self.budget and _fit(costs, self.capacities.tolist())

    def _couple(self, listed: Array | None) -> Coupling:
        """The budget; each worker's capacity; each acted arm has a worker. Helper bits: arm j is worker i's."""
        J, W = self.arms, self.workers
        budget = np.append(np.ones(J), np.zeros(J * W))[None]
        capacity = np.hstack([np.zeros((W, J)), np.kron(np.eye(W), self.costs)])
        served = np.hstack([np.eye(J), -np.tile(np.eye(J), W)])
        most = np.concatenate([[self.budget], self.capacities, np.zeros(J)])
        return Coupling(np.concatenate([budget, capacity, served]), most.astype(float), J, listed)

    def _observe(self) -> Array:
        return (self.state / (self.states - 1)).astype(np.float32)


def _fit(costs: list[int], free: list[int]) -> bool:
    """Whether costs, the largest first, fit into workers with these free capacities, each into one."""
    if not costs:
        return True
    for i, room in enumerate(free):
        if room >= costs[0] and _fit(costs[1:], [*free[:i], room - costs[0], *free[i + 1 :]]):
            return True
    return False

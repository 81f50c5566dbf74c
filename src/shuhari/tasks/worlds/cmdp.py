"""A small constrained Markov decision process in tables, and its best policy under a cost limit by linear programming.

Speed pays and costs differently in each place. Source of the linear program: Altman, "Constrained Markov Decision
Processes" (1999), section 2.4, here with a finite horizon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from scipy import optimize, sparse

from shuhari.bounds import AtLeast0, Bounds, Length, Seed, check
from shuhari.data import Array
from shuhari.kernel.registry import register
from shuhari.tasks.lanes import Stepped


@register("world", "cmdp")
@dataclass(eq=False)
class Cmdp(gymnasium.Env[Any, Any]):
    """A small constrained Markov decision process in tables: speed pays, and costs its square.

    Action a is the speed x = a / (speeds - 1). A step pays u x and costs v x², with u and v of the place in [0.5, 1.5];
    `info` has `cost`. The next place is random, by place and speed. An episode starts anywhere; the observation is the
    place.

    Costs fall as the square of the speed, so the best policy under a limit is slow if v is large compared with u, and a
    policy that is a little too fast costs a little too much.
    """

    states: Annotated[int, Bounds(2, 1000)] = 8
    """Number of places, which are the observations."""
    speeds: Annotated[int, Bounds(2, 100)] = 5
    """Number of actions, speeds evenly spaced from 0 to 1."""
    limit: Length = 20
    """Number of steps after which an episode is truncated."""
    instance: Seed = 0
    """Seed of the tables of transitions, rewards and costs; each number is another process."""
    moves: ClassVar = "place", "at"

    def __post_init__(self) -> None:
        check(self)
        self.observation_space, self.action_space = spaces.Discrete(self.states), spaces.Discrete(self.speeds)
        self.p, self.r, self.c = make_tables(self.states, self.speeds, self.instance)
        self._sums = self.p.cumsum(2)
        self.place = self.at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.at = int(self.np_random.integers(self.states)), 0
        return self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward, cost = float(self.r[self.place, action]), float(self.c[self.place, action])
        u = float(self.np_random.random())
        self.place = min(int(np.searchsorted(self._sums[self.place, action], u, side="right")), self.states - 1)
        self.at += 1
        return self.place, reward, False, self.at >= self.limit, {"cost": cost}

    def step_lanes(self, lanes: Any, actions: Array) -> Stepped:
        reward, cost = self.r[lanes.place, actions], self.c[lanes.place, actions]
        passed = self._sums[lanes.place, actions] <= lanes.draw("random")[:, None]  # [N, S]
        lanes.place, lanes.at = passed.sum(1).clip(max=self.states - 1), lanes.at + 1
        return lanes.place, reward, np.zeros(len(reward), bool), lanes.at >= self.limit, {"cost": cost}


def make_tables(states: int, speeds: int, instance: int) -> tuple[Array, Array, Array]:
    """Returns (transitions [S, A, S], rewards [S, A], costs [S, A])."""
    rng = np.random.default_rng(instance)
    p = rng.dirichlet(np.ones(states), (states, speeds))
    u, v = rng.uniform(0.5, 1.5, (2, states, 1))
    x = np.linspace(0, 1, speeds)
    return p, u * x, v * x**2


def solve(p: Array, r: Array, c: Array, start: Array, horizon: int, limit: AtLeast0) -> tuple[float, Array]:
    """Returns (the best expected return of any policy whose expected cost per episode is at most `limit`, its occupancy
    x [T, S, A]). p [S, A, S], r and c [S, A], start [S]. The linear program: maximise <x, r>, subject to x >= 0, <x, c>
    <= limit and sum_a x[0] = start, sum_a x[t + 1, s'] = sum_{s, a} x[t, s, a] p[s, a, s']. Raises ValueError if no
    policy satisfies the limit."""
    S, A = r.shape
    leaves = np.kron(np.eye(S), np.ones((1, A)))  # [S, S A]: the probability of being in a place
    flow = sparse.kron(sparse.eye(horizon), leaves) - sparse.kron(sparse.eye(horizon, k=-1), p.reshape(S * A, S).T)
    b = np.concatenate([start, np.zeros((horizon - 1) * S)])
    cost = np.tile(c.ravel(), horizon)[None]
    found = optimize.linprog(-np.tile(r.ravel(), horizon), cost, [limit], flow, b)
    if not found.success:
        raise ValueError(f"no policy costs at most {limit:g} an episode: {found.message}")
    return float(-found.fun), np.reshape(found.x, (horizon, S, A))

"""Small worlds with a fixed number of steps, in tables: a river, an investment, or random tables, with exact regret.

The river is that of `riverswim` with an end. Axes: `T` steps, `P` places, `A` actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.bounds import Bounds, Length, Seed, check
from shuhari.data import Array
from shuhari.kernel.registry import register
from shuhari.tasks.lanes import Stepped
from shuhari.tasks.worlds.finite_horizon import Table, iterate_from_random
from shuhari.tasks.worlds.riverswim import make_tables

TAKE, INVEST = 0, 1
WAGE = 0.5  # reward of a step of `invest` that takes


@register("world", "episodic")
@dataclass(eq=False)
class Episodic(gymnasium.Env[Any, Any]):
    """A small world with a fixed number of steps, in tables, with exact regret.

    `river`: RiverSwim, with a small reward at the left bank and a large one against the current. `invest`: action 0
    pays 0.5 and leads back to place 0, action 1 pays nothing and leads one place on; at the last place it pays 1 and
    stays. `random`: transitions drawn from a flat Dirichlet distribution, mean rewards uniform in [0, 1], three
    actions. Rewards lie in [0, 1] and are their means.

    Episodes begin at place 0. Observation: step * P + place. `table` has its tables, `q` [T, P, A] are the optimal
    values, `expert` is the best policy. `info` has `regret`: V*(s) - Q*(s, a) of the chosen action, whose expected sum
    over an episode is the policy's shortfall in return.
    """

    layout: Literal["river", "invest", "random"] = "river"
    """Kind of world: `river`, `invest` or `random`."""
    places: Annotated[int, Bounds(3, 1000)] = 6
    """Number of places."""
    horizon: Length = 20
    """Number of steps of an episode."""
    instance: Seed = 0
    """Seed of the tables of `random`; each number is another world."""
    moves: ClassVar = "place", "at"

    def __post_init__(self) -> None:
        check(self)
        p, r = {"river": self._flow, "invest": self._wait, "random": self._draw}[self.layout]()
        self.p, self.r = p, r
        self.q = iterate_from_random(p, r, self.horizon, self.horizon)
        self._sums = p.cumsum(2)
        states = (self.horizon + 1) * self.places
        self.observation_space, self.action_space = spaces.Discrete(states), spaces.Discrete(r.shape[1])
        self.place = self.at = 0

    @property
    def table(self) -> Table:
        return Table(self.p, self.r, 0, self.horizon)

    def expert(self, observation: Any, rng: Any) -> int:
        """Returns the best action for the observation's step and place."""
        return int(self.q[divmod(int(observation), self.places)].argmax())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.at = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        q, reward, u = self.q[self.at, self.place], float(self.r[self.place, action]), float(self.np_random.random())
        passed = np.searchsorted(self._sums[self.place, action], u, side="right")
        self.place, self.at = min(int(passed), self.places - 1), self.at + 1
        seen = self.at * self.places + self.place
        return seen, reward, self.at >= self.horizon, False, {"regret": float(q.max() - q[action])}

    def step_lanes(self, lanes: Any, actions: Array) -> Stepped:
        q = self.q[lanes.at, lanes.place]  # [N, A]
        reward = self.r[lanes.place, actions]
        passed = self._sums[lanes.place, actions] <= lanes.draw("random")[:, None]  # [N, P]
        lanes.place, lanes.at = passed.sum(1).clip(max=self.places - 1), lanes.at + 1
        regret = q.max(1) - np.take_along_axis(q, actions[:, None], 1)[:, 0]
        over = lanes.at >= self.horizon
        return lanes.at * self.places + lanes.place, reward, over, np.zeros(len(over), bool), {"regret": regret}

    def _flow(self) -> tuple[Array, Array]:
        return make_tables(self.places)

    def _wait(self) -> tuple[Array, Array]:
        n = self.places
        p, r = np.zeros((n, 2, n)), np.zeros((n, 2))
        p[:, TAKE, 0], r[:, TAKE] = 1.0, WAGE
        p[np.arange(n), INVEST, np.minimum(np.arange(n) + 1, n - 1)] = 1.0
        r[-1, INVEST] = 1.0
        return p, r

    def _draw(self) -> tuple[Array, Array]:
        rng = np.random.default_rng(self.instance)
        return rng.dirichlet(np.ones(self.places), (self.places, 3)), rng.uniform(0, 1, (self.places, 3))

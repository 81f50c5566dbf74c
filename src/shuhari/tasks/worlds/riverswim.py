"""RiverSwim, with actions that may swap over time: a walk against the current to a far reward, with exact regret.

Source: Strehl and Littman, "An analysis of model-based interval estimation for Markov decision processes" (2008), with
the numbers of Osband, Russo and Van Roy, "(More) Efficient Reinforcement Learning via Posterior Sampling" (2013).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.bounds import Bounds, Count, Length, check
from shuhari.data import Array
from shuhari.kernel.registry import register
from shuhari.tasks.lanes import Stepped
from shuhari.tasks.worlds.average_reward import extended_value_iteration

LEFT, RIGHT = 0, 1  # before the first change


@register("world", "riverswim")
@dataclass(eq=False)
class RiverSwim(gymnasium.Env[Any, Any]):
    """RiverSwim: places along a river, a small reward at the left bank and a large one against the current, with exact
    regret.

    An episode begins at place 0; the observation is the place. Action 0 swims left and always succeeds; action 1 swims
    right and advances with probability 0.35 (0.6 from the left bank), falls back with 0.05 (0.4 from the right bank)
    and otherwise stays. Left at the left bank pays 0.005, right at the right bank 1. `info` has `regret`: the best gain
    less the mean reward of state and action.
    """

    states: Annotated[int, Bounds(3, 1000)] = 6
    """Number of places along the river; more are harder to explore."""
    period: Count = 0
    """Number of steps of an episode after which the two actions swap, repeatedly; 0 never swaps them."""
    limit: Length = 1_000_000
    """Number of steps after which an episode is truncated."""
    moves: ClassVar = "place", "at"

    def __post_init__(self) -> None:
        check(self)
        self.observation_space, self.action_space = spaces.Discrete(self.states), spaces.Discrete(2)
        self.p, self.r = make_tables(self.states)
        self.gain = extended_value_iteration(self.r, self.p, np.zeros_like(self.r), 1e-9)[0]
        self.place = self.at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.at = 0
        return self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        swapped = bool(self.period) and self.at // self.period % 2 == 1
        swims = 1 - int(action) if swapped else int(action)
        reward = float(self.r[self.place, swims])
        u = float(self.np_random.random())
        self.place = int(np.searchsorted(self.p[self.place, swims].cumsum(), u, side="right").clip(max=self.states - 1))
        self.at += 1
        return self.place, reward, False, self.at >= self.limit, {"regret": self.gain - reward}

    def step_lanes(self, lanes: Any, actions: Array) -> Stepped:
        swims = np.where(lanes.at // self.period % 2 == 1, 1 - actions, actions) if self.period else actions
        reward = self.r[lanes.place, swims]
        passed = self.p[lanes.place, swims].cumsum(1) <= lanes.draw("random")[:, None]  # [N, S]
        lanes.place, lanes.at = passed.sum(1).clip(max=self.states - 1), lanes.at + 1
        tells = {"regret": self.gain - reward}
        return lanes.place, reward, np.zeros(len(reward), bool), lanes.at >= self.limit, tells


def make_tables(states: int) -> tuple[Array, Array]:
    """Returns (transitions [S, A, S], rewards [S, A]) of the river before a change."""
    p, r = np.zeros((states, 2, states)), np.zeros((states, 2))
    for s in range(states):
        p[s, LEFT, max(s - 1, 0)] = 1.0
        first, last = s == 0, s == states - 1
        on, back = 0.0 if last else 0.6 if first else 0.35, 0.0 if first else 0.4 if last else 0.05
        p[s, RIGHT, min(s + 1, states - 1)] += on
        p[s, RIGHT, max(s - 1, 0)] += back
        p[s, RIGHT, s] += 1.0 - on - back
    r[0, LEFT], r[-1, RIGHT] = 0.005, 1.0
    return p, r

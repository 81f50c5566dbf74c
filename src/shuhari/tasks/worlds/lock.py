"""The combination lock of exploration theory, in tables: one right action per step, and a trap for all others.

Sources: Misra, Henaff, Krishnamurthy and Langford, "Kinematic State Abstraction and Provably Efficient Rich-Observation
Reinforcement Learning" (2020), and Zhang et al., "Efficient Reinforcement Learning in Block MDPs: A Model-free
Representation Learning Approach" (2022), section 5, whose code pays the lure by a coin toss and starts at 0 or 1 as
here. Left out: observations of real numbers.

Axes: `H` steps, 3 states of a step (0 and 1 are good, 2 is the trap), `A` actions, `S` observations, `d` features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.bounds import Bounds, Length, Seed, Share, check
from shuhari.data import Array, code
from shuhari.kernel.registry import register
from shuhari.tasks.scene import Scene

TRAP = 2


@register("world", "lock")
@dataclass(eq=False)
class Lock(gymnasium.Env[Any, Any]):
    """The combination lock, a hard exploration problem in tables: one right action at each step, and a trap for all
    others.

    An episode begins in one of two good states. Each has one right action at each step, which leads to either good
    state with probability 1/2, and at the last step pays 1. Any other action pays `lure` and leads into the trap, which
    pays nothing and is absorbing.

    Observation: step * P + state * looks + look, with P = 3 * looks. `p` [H, 3, A, 3] and `r` [H, 3, A] are its tables,
    `q` [H, 3, A] the optimal values, `best` the optimal expected return; `features` [S, A, 3 A] show an observation's
    state, whatever its look, and the action. `info` has `regret`: V*(s) - Q*(s, a) of the chosen action, whose expected
    sum over an episode is exactly the policy's shortfall in return (the performance difference lemma: Kakade and
    Langford 2002).
    """

    horizon: Length = 8
    """Number of steps of an episode; each action must be right."""
    actions: Annotated[int, Bounds(2, 100)] = 4
    """Number of actions, one right at each step; more are harder to find by chance."""
    slip: Share = 0.0
    """Probability that a random action is executed instead of the chosen one; 0 is deterministic."""
    lure: Share = 0.1
    """Reward for each action that leads into the trap, which misleads greedy learners."""
    looks: Length = 1
    """Number of observations of each state, one shown at random; 1 shows the state."""
    combination: Seed = 0
    """Seed of the right actions; each number is another lock."""

    def __post_init__(self) -> None:
        check(self)
        H, A, self.places = self.horizon, self.actions, 3 * self.looks
        self.right = np.random.default_rng(code("lock", self.combination)).integers(A, size=(H, 2))
        hits = (1 - self.slip) * np.eye(A)[self.right] + self.slip / A  # [H, 2, A]
        self.p, self.r, self.q = np.zeros((H, 3, A, 3)), np.zeros((H, 3, A)), np.zeros((H, 3, A))
        self.p[:, :TRAP, :, :TRAP] = hits[..., None] / 2
        self.p[:, :TRAP, :, TRAP], self.p[:, TRAP, :, TRAP] = 1 - hits, 1.0
        self.r[:, :TRAP] = self.lure * (1 - hits)
        self.r[-1, :TRAP] += hits[-1]
        value = np.zeros(3)
        for t in reversed(range(H)):
            self.q[t] = self.r[t] + self.p[t] @ value
            value = self.q[t].max(1)
        self.best = float(value[:TRAP].mean())
        self.observation_space, self.action_space = spaces.Discrete((H + 1) * self.places), spaces.Discrete(A)
        self.state = self.at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.state, self.at = int(self.np_random.integers(TRAP)), 0
        return self._look(), {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        q, last, good = self.q[self.at, self.state], self.at == self.horizon - 1, self.state != TRAP
        slips = self.np_random.random() < self.slip
        done = int(self.np_random.integers(self.actions)) if slips else int(action)
        right = good and done == self.right[self.at, self.state]
        reward = float(last) if right else self.lure if good else 0.0
        self.state, self.at = int(self.np_random.integers(TRAP)) if right else TRAP, self.at + 1
        return self._look(), reward, last, False, {"regret": float(q.max() - q[action])}

    def expert(self, observation: Any, rng: Any) -> int:
        """Returns the best action for the observation's step and state."""
        at, place = divmod(int(observation), self.places)
        return int(self.q[at, place // self.looks].argmax())

    @property
    def features(self) -> Array:
        states = np.arange((self.horizon + 1) * self.places) % self.places // self.looks
        return np.eye(3 * self.actions).reshape(3, self.actions, -1)[states]

    @property
    def scene(self) -> Scene:
        """A column for each step; rows are the two good states and below them the trap."""
        return Scene((0.0, 0.0, self.horizon + 1.0, 3.0), (), ((float(self.horizon), 1.0, 1.0, 2.0),), self._find)

    def _find(self, observation: Any) -> tuple[float, float]:
        at, place = divmod(int(observation), self.places)
        return at + 0.5, TRAP - place // self.looks + 0.5

    def _look(self) -> int:
        return self.at * self.places + self.state * self.looks + int(self.np_random.integers(self.looks))

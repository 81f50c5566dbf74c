"""Bit flipping: a goal that chance hardly ever reaches, and that each episode would have reached had it been another.

Source: Andrychowicz et al. 2017, "Hindsight Experience Replay", section 3.1. An environment with goals as those of
Gymnasium-Robotics. Left out: images of the bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.bounds import Bounds, Count, check
from shuhari.data import Array
from shuhari.kernel.registry import register


@register("world", "bitflip")
@dataclass(eq=False)
class BitFlip(gymnasium.Env[Any, Any]):
    """Bits, one of which each action flips, until they equal the goal: a sparse reward, for goals in hindsight.

    Observation: a Dict of `observation` and `achieved_goal`, both the bits, and `desired_goal`, [bits] of 0 and 1.
    The reward is -1 until the goal is reached, then 0, and the episode ends; `info` has `is_success`. An episode begins
    with bits and a goal that are drawn, and differ. `compute_reward` and `compute_terminated` take goals [..., bits].
    """

    bits: Annotated[int, Bounds(2, 64)] = 8
    """Number of bits, and of actions; 2^bits states and as many goals."""
    limit: Count = 0
    """Number of steps after which an episode is truncated; 0 is as many as there are bits."""

    def __post_init__(self) -> None:
        check(self)
        one = spaces.MultiBinary(self.bits)
        self.observation_space = spaces.Dict(observation=one, achieved_goal=one, desired_goal=one)
        self.action_space = spaces.Discrete(self.bits)
        self.state, self.goal, self.at = np.zeros(self.bits, np.int8), np.zeros(self.bits, np.int8), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        self.state = self.goal = self.np_random.integers(2, size=self.bits).astype(np.int8)
        while (self.state == self.goal).all():
            self.goal = self.np_random.integers(2, size=self.bits).astype(np.int8)
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state, self.at = self.state.copy(), self.at + 1
        self.state[int(action)] ^= 1
        done = bool(self.compute_terminated(self.state, self.goal, {}))
        late = self.at >= (self.limit or self.bits) and not done
        reward = float(self.compute_reward(self.state, self.goal, {}))
        return self._look(), reward, done, late, {"is_success": float(done)}

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        return np.asarray((achieved_goal == desired_goal).all(-1) - 1.0)

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        return np.asarray((achieved_goal == desired_goal).all(-1))

    def expert(self, observation: Any, rng: Any) -> int:
        """Flips the first bit that is wrong."""
        return int((np.asarray(observation["observation"]) != observation["desired_goal"]).argmax())

    def _look(self) -> dict[str, Array]:
        return {"observation": self.state, "achieved_goal": self.state, "desired_goal": self.goal}

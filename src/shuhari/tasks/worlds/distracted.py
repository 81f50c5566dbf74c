"""A Gymnasium environment with distractors: further dimensions of the state that move chaotically and have no effect.

Source: Voelcker et al. 2022, "Value Gradient weighted Model-Based Reinforcement Learning".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.bounds import Bounds, Length, Positive, check
from shuhari.data import Array
from shuhari.kernel.registry import register


@register("world", "distracted")
@dataclass(eq=False)
class Distracted(gymnasium.Env[Array, Any]):
    """A Gymnasium environment whose observations are followed by chaotic numbers without any effect.

    A distractor is `size` times 2 x - 1, with x a logistic map, x <- 4 x (1 - x), that starts uniform in (0, 1).
    Actions and rewards are those of the environment.
    """

    of: str = "Pendulum-v1"
    """Gymnasium id of the environment, whose observations are a flat Box."""
    dims: Length = 15
    """Number of distracting dimensions that are appended to the observation."""
    size: Annotated[Positive, Bounds(0, 1e6, open="low")] = 1.0
    """Largest absolute value of a distractor."""

    def __post_init__(self) -> None:
        check(self)
        self.env: gymnasium.Env[Any, Any] = gymnasium.make(self.of, disable_env_checker=True)
        seen: Any = self.env.observation_space
        ends = np.full(self.dims, self.size, np.float32)
        low, high = np.concatenate([seen.low, -ends]), np.concatenate([seen.high, ends])
        self.observation_space, self.action_space = spaces.Box(low, high, dtype=np.float32), self.env.action_space
        self.x = np.zeros(self.dims)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        seen, info = self.env.reset(seed=seed)
        self.x = self.np_random.uniform(0.0, 1.0, self.dims)
        return self._look(seen), info

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        seen, reward, finished, cut, info = self.env.step(action)
        self.x = 4.0 * self.x * (1.0 - self.x)
        return self._look(seen), float(reward), finished, cut, info

    def _look(self, seen: Array) -> Array:
        return np.concatenate([seen, self.size * (2.0 * self.x - 1.0)]).astype(np.float32)

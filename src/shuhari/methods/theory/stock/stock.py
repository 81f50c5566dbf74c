"""A Gymnasium wrapper that adds a stock to the observation: what was earned so far, in units of now.

Source: Pires et al., "Optimizing Return Distributions with Distributional Dynamic Programming" (2025), section 3.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shuhari.data import Array


class Stock(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Appends the stock c to a flat Box observation: c_0 is drawn uniformly from [low, high] as an episode begins, and
    c <- (c + reward) / gamma with each step.

    So c_t + G_t = gamma (c_t+1 + G_t+1) for the return G: what is still to come, added to the stock, is the whole
    return and c_0, in units of now. `info` has `stock`. Raises ValueError for bounds in the wrong order, a discount
    outside (0, 1], and observations that are not a flat Box.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], low: float = 0.0, high: float = 1.0, gamma: float = 1.0) -> None:
        super().__init__(env)
        seen = env.observation_space
        if not low <= high:
            raise ValueError(f"Stock: low is {low:g} and high {high:g}: expected low <= high")
        if not 0 < gamma <= 1:
            raise ValueError(f"Stock: gamma is {gamma:g}: expected a discount in (0, 1]")
        if not isinstance(seen, spaces.Box) or len(seen.shape) != 1:
            raise ValueError(f"Stock: the observations are {seen}: expected a flat Box")
        self.low, self.high, self.gamma, self.stock = float(low), float(high), float(gamma), float(low)
        bound = np.full(1, np.inf, np.float32)
        ends = np.concatenate([seen.low, -bound]), np.concatenate([seen.high, bound])
        self.observation_space = spaces.Box(*ends, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        seen, info = self.env.reset(seed=seed, options=options)
        self.stock = float(self.np_random.uniform(self.low, self.high))
        return self._append(seen), info

    def step(self, action: Any) -> tuple[Array, Any, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, info = self.env.step(action)
        self.stock = (self.stock + float(reward)) / self.gamma
        return self._append(seen), reward, terminated, truncated, {**info, "stock": self.stock}

    def _append(self, seen: Array) -> Array:
        return np.append(seen, np.float32(self.stock)).astype(np.float32)

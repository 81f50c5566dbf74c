"""Worlds that workers import by the name of this module."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces


class Rooms(gymnasium.Env[Any, Any]):
    """A Dict of every kind of number; two of four doors are open, told in `info`: a closed one raises. An open one may
    end the episode."""

    observation_space = spaces.Dict(
        {
            "seen": spaces.Box(-9, 9, (2,), np.float64),
            "view": spaces.Box(0, 255, (3, 2), np.uint8),
            "at": spaces.Discrete(4),
        }
    )
    action_space = spaces.Discrete(4, start=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._seen()

    def step(self, action: Any) -> Any:
        if not self.open[action - 1]:
            raise ValueError(f"door {action} is closed")
        reward, ends = self.np_random.normal(), self.np_random.random() < 0.2
        seen, info = self._seen()
        return seen, reward, bool(ends), False, info

    def _seen(self) -> Any:
        self.open = np.zeros(4, np.int8)
        self.open[self.np_random.choice(4, 2, replace=False)] = 1
        view = self.np_random.integers(0, 256, (3, 2)).astype(np.uint8)
        seen = {"seen": self.np_random.normal(size=2), "view": view, "at": int(self.np_random.integers(4))}
        return seen, {"action_mask": self.open}


class Lever(gymnasium.Env[Any, Any]):
    """A Box of double precision, bounded below; the action that it is given is its own to change."""

    observation_space = spaces.Box(-9, 9, (1,), np.float32)
    action_space = spaces.Box(np.zeros(2), np.full(2, np.inf), dtype=np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.normal()
        return np.array([self.place], np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.place = 0.9 * self.place + 0.1 * action[0] - 0.05 * action[1]
        action += 100
        return np.array([self.place], np.float32), self.place, abs(self.place) > 1, False, {}


class Counted(gymnasium.Env[Any, Any]):
    """Writes a byte to a file at each step; an episode has four of them, or is endless. Seen: its step, the threads
    that its process computes with. It raises at step `raises` of the lane that was seeded with `seed`."""

    observation_space, action_space = spaces.Box(0, 99, (3,), np.float32), spaces.Discrete(2)

    def __init__(self, file: str, endless: bool = False, seed: int = -1, raises: int = -1) -> None:
        self.file, self.endless, self.seed, self.raises = file, endless, seed, raises

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.mine, self.t = seed == self.seed, 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        if self.mine and self.t == self.raises:
            raise ArithmeticError("the door fell off")
        with open(self.file, "ab", 0) as file:
            file.write(b".")
        self.t += 1
        return self._seen(), 1.0, not self.endless and self.t == 4, False, {}

    def _seen(self) -> Any:
        return np.array([self.t, torch.get_num_threads(), float(os.environ.get("OMP_NUM_THREADS", 0))], np.float32)


for made in (Rooms, Lever, Counted):
    gymnasium.register(
        f"{made.__name__}-v7", f"{__name__}:{made.__name__}", max_episode_steps=None if made is Counted else 7
    )


class Telling(gymnasium.Env[Any, Any]):
    """Walks on a line, and tells what it costs, how busy it is, whether it has arrived, and, in one step of three, that
    it did something else than it was asked to. `two`: its reward has two entries."""

    observation_space = spaces.Box(-99, 99, (1,), np.float32)
    action_space = spaces.Box(-2, 2, (1,), np.float32)

    def __init__(self, two: bool = False) -> None:
        self.two = two

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.t = float(self.np_random.normal()), 0
        return np.array([self.place], np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        other = self.t % 3 == 0
        done = -0.5 * action if other else action
        self.place += float(done[0])
        ends = self.t >= 7
        info = {"cost": abs(self.place), "busy": self.t, "where": [self.place, 1.0], "success": float(self.place > 0)}
        reward = [self.place, -1.0] if self.two else self.place
        return np.array([self.place], np.float32), reward, ends, False, {**info, "done": done if other else None}


gymnasium.register("Telling-v7", entry_point=Telling)


class Expert(Telling):
    """The same, with a policy of its own: home."""

    def expert(self, observation: Any, rng: np.random.Generator) -> Any:
        return np.clip(-observation + 0.01 * rng.normal(size=1), -2, 2)


gymnasium.register("Expert-v7", entry_point=Expert)

"""Simulates a slow environment: wraps any other, with a wait before each step. Left out: waits that vary."""

from __future__ import annotations

import time
from typing import Any

import gymnasium


class Latency(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each step takes `seconds` longer, without computation: a remote simulator, a device, a network. In a recipe:
    `task.wrappers = [{use = "shuhari.tasks.latency.Latency", seconds = 0.005}]`."""

    def __init__(self, env: gymnasium.Env[Any, Any], seconds: float = 0.005) -> None:
        super().__init__(env)
        if not seconds >= 0:
            raise ValueError(f"Latency: seconds is {seconds}: expected 0 or more")
        self.seconds = seconds

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(self.seconds)
        return self.env.step(action)

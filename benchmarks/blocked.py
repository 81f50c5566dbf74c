"""The tool game of `tasks/shop.py` with a shop that blocks: each answer holds its process for `wait` seconds, as a tool
does that computes or calls without `await`. In a recipe: `task.name = "benchmarks/blocked.py:Blocked"`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from shuhari.data import Problem
from shuhari.tasks.shop import Counter, Shop


@dataclass
class Blocked(Shop):
    """`wait`: seconds of each answer, slept in the process that plays."""

    wait: float = 0.02

    def environment(self, problem: Problem) -> Counter:
        return Blocking(self)


class Blocking(Counter):
    def __init__(self, task: Blocked) -> None:
        super().__init__(task.turns)
        self.wait = task.wait

    def step(self, action: Any) -> Any:
        time.sleep(self.wait)
        return super().step(action)

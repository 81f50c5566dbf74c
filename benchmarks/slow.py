"""The tool game of `tasks/shop.py` in slow motion: each answer of the shop takes a drawn time, and some questions are
long. In a recipe: `task.name = "benchmarks/slow.py:SlowShop"`.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from typing import Any

from shuhari.data import Problem
from shuhari.tasks.shop import Counter, Shop
from shuhari.tasks.source import Stream


@dataclass
class SlowShop(Shop):
    """Questions of 2 to `most` items, log-normal with median 2 and this `tail`, so that few games are far longer;
    waits are log-normal with mean `wait` seconds and `spread` of the logarithm. Held-out problems answer at once."""

    most: int = 6
    tail: float = 0.5
    wait: float = 0.2
    spread: float = 1.0

    def environment(self, problem: Problem) -> Counter:
        return Slow(self) if self.wait and not problem.info.get("quick") else Counter(self.turns)

    def _item(self, split: str, index: int) -> tuple[str, Problem]:
        stream = Stream("items", self.seed, split, index)
        items = min(self.most, max(2, round(2 * math.exp(self.tail * _normal(stream)))))
        content, problem = replace(self, items=items)._shop(split, index)
        return content, replace(problem, info={**problem.info, "quick": split == "test"})

    def _shop(self, split: str, index: int) -> tuple[str, Problem]:
        return super()._item(split, index)


class Slow(Counter):
    """A shop that takes its time."""

    made = 0

    def __init__(self, task: SlowShop) -> None:
        super().__init__(task.turns)
        self.task, self.stream = task, Stream("wait", task.seed, Slow.made)
        Slow.made += 1

    def step(self, action: Any) -> Any:
        return self._late(action)

    async def _late(self, action: Any) -> Any:
        t = self.task
        await asyncio.sleep(t.wait * math.exp(t.spread * _normal(self.stream) - t.spread**2 / 2))
        return super().step(action)


def _normal(stream: Stream) -> float:
    u = max(stream.uniform(), 1e-12)
    return math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * stream.uniform())

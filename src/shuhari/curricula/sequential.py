"""The simplest curriculum: problems in order.

Left out: choosing. The run fills in `n` and `sampling` of a request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shuhari.bounds import Count, Seed, check
from shuhari.data import Array, Request
from shuhari.kernel.noise import keys
from shuhari.kernel.registry import register
from shuhari.ports import Ctx


@register("curriculum", "sequential")
@dataclass
class Sequential:
    """Problems of a data split one after another, epoch by epoch.

    A finite split repeats; if shuffled, each epoch's order is a permutation that depends on `seed` and the epoch only.
    An endless source is used in its own order. Raises ValueError if there is no problem.
    """

    split: str = "train"
    """Name of the task's split that is used, such as `train`."""
    shuffle: bool = True
    """Put a finite split into a new order each epoch."""
    pool: Count = 0
    """Number of first problems that are used, which also makes an endless source finite; 0 uses all."""
    seed: Seed = 0
    """Seed of the shuffled orders."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"at": 0})
    stamps = ()

    def __post_init__(self) -> None:
        check(self)
        self._order: tuple[tuple[int, int], Array] | None = None  # (epoch, size) -> permutation: a cache

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        source = ctx.task.problems(self.split)
        size = source.size()
        if size == 0:
            raise ValueError(
                f"the task {type(ctx.task).__name__} has no problems in its split {self.split!r}: expected at least one"
            )
        if self.pool:
            size = self.pool if size is None else min(self.pool, size)
        first = int(self.state["at"])
        self.state["at"] = first + n
        return [Request(source[self._index(at, size)]) for at in range(first, first + n)]

    def _index(self, at: int, size: int | None) -> int:
        if size is None:
            return at
        epoch, index = divmod(at, size)
        if not self.shuffle:
            return index
        if self._order is None or self._order[0] != (epoch, size):
            order = np.argsort(keys(self.seed, "epoch", epoch, n=size), kind="stable")
            self._order = (epoch, size), order
        return int(self._order[1][index])

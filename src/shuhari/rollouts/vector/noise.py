"""The noise of lanes: a row's draws depend on its lane and the number of steps taken, not on its slot."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from shuhari.data import Array
from shuhari.kernel.noise import CounterNoise

BLOCK = 64  # number of steps whose noise is drawn at once


class LaneNoise:
    """The lanes' noise for the policy, for the current slot: index 0 at every step, while the counter below counts
    up."""

    def __init__(self, row_keys: Array, slots: Sequence[slice]) -> None:
        self.below = [CounterNoise(row_keys[slot], BLOCK) for slot in slots]
        self.slot, self.at, self.used = 0, 0, 1

    @property
    def keys(self) -> None:
        """None: a row's noise also depends on the counter below."""

    def uniform(self, index: int, *shape: int) -> Tensor:
        self.used = max(self.used, index + 1)
        return self.below[self.slot].uniform(self.at + index, *shape)

    def normal(self, index: int, *shape: int) -> Tensor:
        self.used = max(self.used, index + 1)
        return self.below[self.slot].normal(self.at + index, *shape)

    def step(self) -> None:
        self.at, self.used = self.at + self.used, 1

"""The memories of the lanes: what a policy that remembers has carried so far, from zeros at each start of an episode.

Axes: `N` lanes, `T` steps of a fragment, `S` numbers of a memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.data import Array
from shuhari.kernel.recall import with_memory
from shuhari.needs import Traces
from shuhari.ports import Ctx, ability


class LaneMemory:
    """`now` [N, S]: the memory of each lane before its next row; None of a policy that keeps none, and before the first
    decision. `rows`: what it was before each row of the fragment that is collected."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.now: Tensor | None = None
        self.rows: list[Tensor] = []
        self.rewarded: Any = None  # of a policy that uses rewards: see `Rewarded`

    def begin(self, policy: Any, role: str) -> None:
        """Begin a fragment. ValueError if the lanes' memories are not of the size that this policy's are."""
        size, self.rows = ability(policy, "memory"), []
        have = None if self.now is None else self.now.shape[1]
        if have is not None and have != size:
            now = "remembers nothing" if size is None else f"remembers {size}"
            raise ValueError(f"vector: the policy's memory of the episodes in progress has {have} numbers, and the "
                             f"model of role {role!r} {now}: expected {have}, or new episodes")  # fmt: skip
        self.rewarded = ability(policy, "rewarded")
        if size is not None and self.now is None:
            self.now = torch.zeros(self.lanes, size)

    def show(self, seen: Any, slot: slice) -> Any:
        """Returns the observations of a slot together with the memories, as the policy reads them."""
        return seen if self.now is None else with_memory(seen, self.now[slot].clone())

    def note(self) -> None:
        """Begins the next row of the column `memory`."""
        if self.now is not None:
            self.rows.append(torch.empty_like(self.now))

    def put(self, slot: slice) -> None:
        """Writes the memories of the lanes of a slot into the row that `note` began."""
        if self.now is not None:
            self.rows[-1][slot] = self.now[slot]

    def take(self, trace: Traces, slot: slice) -> None:
        """Stores the policy's memory after its decisions in the lanes of a slot."""
        if self.now is not None and trace.memory is not None:
            self.now[slot] = trace.memory

    def pay(self, rewards: Mapping[str, Array], slot: slice, ctx: Ctx) -> None:
        """Pass the policy the rewards of its last decisions, name -> [N], weighted as in the run."""
        if self.now is not None:
            paid = np.zeros(len(self.now[slot]))
            for name, weight in ctx.weights.items():
                paid += ctx.at(weight) * rewards[name][slot] if name in rewards else 0.0
            self.now[slot] = self.rewarded(self.now[slot], torch.from_numpy(paid).float())

    def forget(self, lanes: Sequence[int]) -> None:
        """Let lanes begin an episode."""
        if self.now is not None and lanes:
            self.now[list(lanes)] = 0.0

    def column(self) -> dict[str, Tensor]:
        """The column `memory` [(T + 1) * N, 1, S] of a fragment, if there is one."""
        return {"memory": torch.cat(self.rows).unsqueeze(1)} if self.rows else {}

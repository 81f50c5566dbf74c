"""Recorded episodes of a known world with the advantage of each decision under the best policy with a price on entropy.

It stands for somebody who prefers the segment with less regret. For tasks with tables of their dynamics (`P`, `R`),
such as `gridworld`.

Axes: `S` states, `A` actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor

from shuhari.bounds import Bounds, check
from shuhari.data import Array
from shuhari.kernel.registry import register
from shuhari.ports import Recording, Task, ability
from shuhari.ports.declares import together


@register("recording", "soft_advantages")
@dataclass
class SoftAdvantages:
    """A data set with the column `advantage` [N, 1]: of each decision under the policy that maximises the discounted
    sum of reward + temperature * entropy, where it is temperature log pi*(action).

    Closing rows have NaN. Raises ValueError for a task without tables of its dynamics.
    """

    data: Recording
    """The data set whose decisions are valued, such as `played`."""
    temperature: Annotated[float, Bounds(0, open="low")] = 0.1
    """Price of the entropy, in units of reward per nat, above 0."""
    gamma: Annotated[float, Bounds(0, 1, open="high")] = 0.95
    """Discount factor of the world, in [0, 1)."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together(("advantage",), self.data)

    @property
    def unknown(self) -> str:
        return ability(self.data, "unknown")

    def read(self, task: Task, seed: int) -> dict[str, Tensor]:
        P, R = getattr(task, "P", None), getattr(task, "R", None)
        if P is None or R is None:
            found = f"the task {type(task).__name__} has no tables of its dynamics"
            raise ValueError(f"soft_advantages: {found}: expected P [S, A, S] and R [S, A], as `gridworld` has")
        columns = dict(self.data.read(task, seed))
        table = torch.from_numpy(find_advantages(P, R, self.gamma, self.temperature)).float()
        value = table[columns["context"].long().flatten(), columns["taken"].long().flatten()][:, None]
        return {**columns, "advantage": torch.where(columns["mask"], value, torch.nan)}


def find_advantages(P: Array, R: Array, gamma: float, temperature: float) -> Array:
    """Return [S, A], the advantages of the policy that is best with a price on entropy: temperature times its
    log-probabilities, by soft value iteration."""
    v = np.zeros(len(R))
    while True:
        q = R + gamma * P @ v
        new = temperature * logsumexp(q / temperature, axis=1)
        if np.abs(new - v).max() < 1e-10:
            return np.asarray(q - new[:, None])
        v = new

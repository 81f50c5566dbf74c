"""A learned dynamics model: an ensemble of deterministic nets that predict the next state and the reward.

Axes: `B` rows, `D` dimensions of a state, `n` members. Leaves out variances, ends of episodes, and observations other
than a flat Box.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.bounds import Length, Width, check
from shuhari.kernel.registry import register
from shuhari.models.mlp import Activation, Ensemble
from shuhari.models.spaces import box, spaces_of
from shuhari.ports import Task


class Prediction:
    """The predictions of each member after a decision: `state()` [B, n, D] and `reward()` [B, n]."""

    __slots__ = ("_reward", "_state")

    def __init__(self, state: Tensor, reward: Tensor) -> None:
        self._state, self._reward = state, reward

    def state(self) -> Tensor:
        return self._state

    def reward(self) -> Tensor:
        return self._reward


@register("model", "dynamics")
@dataclass
class Dynamics:
    """A learned dynamics model: an ensemble of nets (s, a) -> (s' - s, r), of observations [B, D] and decisions [B, A]
    as the policy made them; without variances, as in the code of Voelcker et al. 2022."""

    n: Length = 5
    """Number of nets in the ensemble, which differ by their initial weights."""
    hidden: tuple[Width, ...] = (200, 200)
    """Widths of the hidden layers of the MLP; an empty list makes it linear."""
    activation: Activation = "silu"
    """Activation between the layers."""
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "dynamics")
        d, a = (int(box(s, what, "dynamics").shape[0]) for s, what in ((seen, "observation"), (does, "action")))
        self.module = self._net = Ensemble(self.n, (d + a, *self.hidden, d + 1), self.activation)

    def __call__(self, batch: Batch) -> Prediction:
        s: Any = batch["context"]
        out = self._net(torch.cat([s, batch["action"].view(len(s), -1)], 1)).permute(1, 0, 2)  # [B, n, D + 1]
        return Prediction(s[:, None] + out[..., :-1], out[..., -1])

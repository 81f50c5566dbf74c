"""The recorded action nearest to the policy's: the action of the closest pair of state and action in a data set.

Axes: `B` rows, `N` recorded decisions, `S` numbers of a state, `A` action dimensions.

Source: Ran et al. 2023, "Policy Regularization with Dataset Constraint for Offline Reinforcement Learning" (PRDC).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, check
from shuhari.data import Array
from shuhari.events import Event, Loaded
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("transform", "nearest_action")
@dataclass
class Nearest:
    """Finds the recorded action nearest to the policy's, to constrain the policy to the data (PRDC).

    Stamps `into` [B, A]: the action of the recorded decision whose [beta · state, action] is closest to [beta · state,
    pi(state)] of the row, pi(state) the action of `role` without noise, before the update (PRDC, definition 3 and
    equation 7). A term such as `deterministic_bc` then stays near it, through `toward`.

    States are centred and scaled to a standard deviation of 1 over the recorded decisions; actions are as the policy
    decides them, in [-1, 1]. The recorded decisions are those of the data set last loaded (`Loaded`, by the buffer
    `offline`). Raises RuntimeError before there is one.
    """

    beta: AtLeast0 = 2.0
    """Weight of the state in the distance: 0 compares actions only; a large one gives the action recorded at the row
    itself, as in TD3+BC."""
    into: str = "nearest"
    """Name of the column that receives the action."""
    role: str = "policy"
    """Role of the policy whose action is looked up."""

    def __post_init__(self) -> None:
        check(self)
        self._tree: KDTree | None = None

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "mode"),)

    @property
    def stamps(self) -> tuple[str, ...]:
        return (self.into,)

    def observe(self, event: Event) -> None:
        if isinstance(event, Loaded):
            recorded = event.batch.take(event.batch.decides.nonzero().squeeze(1))
            state = _states(recorded)
            self._mean, self._std = state.mean(0), state.std(0) + 1e-8
            self._actions = recorded["action"].flatten(1)
            self._tree = KDTree(self._keys(recorded, self._actions))

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        if self._tree is None:
            raise RuntimeError("nearest: no recorded data yet: its buffer is 'offline', which tells of them")
        action: Tensor = batch[self.needs[0]].detach().flatten(1)
        found: Any = self._tree.query(self._keys(batch, action))[1]
        return batch.put({self.into: self._actions[torch.from_numpy(found)]})

    def _keys(self, batch: Batch, action: Tensor) -> Array:
        """Returns [B, S + A] the compared vectors."""
        state = self.beta * (_states(batch) - self._mean) / self._std
        return np.concatenate([state, action.numpy()], 1)


def _states(batch: Batch) -> Array:
    """Returns [B, S] all numbers of the observations."""
    names = sorted(n for n in batch.names() if n.partition("/")[0] == "context")
    return np.concatenate([batch[n].flatten(1).double().numpy() for n in names], 1)

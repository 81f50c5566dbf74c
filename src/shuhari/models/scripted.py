"""Policies without parameters: a function of the observation, the task's expert, or random actions.

They act in rollouts and in evaluation like any other policy, so that learnt policies can be compared with them, mixed
with them, or take over from them. Left out: probabilities, so their actions cannot be scored. Axes: `B` rows, `A`
entries of an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from shuhari.batch import Batch
from shuhari.data import Sampling
from shuhari.kernel.registry import register
from shuhari.models.experts import find_expert
from shuhari.models.spaces import spaces_of
from shuhari.needs import Noise, Traces
from shuhari.ports import Task


@register("model", "scripted")
@dataclass
class Scripted:
    """A policy without parameters: the task's expert, random actions, or a function of yours.

    The decision is the action as the environment takes it, and its log-probability is unknown (NaN), so ratios refuse
    it. Sampling settings have no effect. Raises TypeError if its actions are to be scored.
    """

    policy: str = "expert"
    """Name of the policy: `expert` (the task's own), `random`, or a dotted path or `file.py:function` from
    (observation, generator) to an action."""
    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: nn.Module = field(init=False, repr=False)

    def build(self, task: Task) -> None:
        _, does = spaces_of(task, "scripted")
        self._expert, self._dtype, self.module = find_expert(task, self.policy), does.dtype, nn.Module()

    def __call__(self, batch: Batch) -> Any:
        raise TypeError(f"the model 'scripted' ({self.policy}) acts, and cannot score what others did")

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples contexts [B, ...] -> action [B, ...], logp [B, 1] NaN. Each row's generator is seeded by its own
        noise."""
        seeds = (noise.uniform(0, 2) * 2**31).long().tolist()
        n = len(seeds)
        rows = [_row(contexts, i) for i in range(n)]
        taken = [self._expert(x, np.random.default_rng(s)) for x, s in zip(rows, seeds, strict=True)]
        action = torch.from_numpy(np.stack([np.asarray(x, self._dtype) for x in taken]))
        action = action.float() if action.is_floating_point() else action.long()
        return Traces(action, torch.full((n, 1), torch.nan))


def _row(contexts: Any, i: int) -> Any:
    """Returns one observation, as an environment gives it."""
    if isinstance(contexts, Mapping):
        return {k: _row(x, i) for k, x in contexts.items()}
    x = contexts[i].numpy()
    return x if x.ndim else x.item()

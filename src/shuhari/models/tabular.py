"""A table of logits: the smallest policy, whose distribution is exact, for tests and tutorials.

Axes: `B` rows, `S` states, `A` actions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.data import Sampling
from shuhari.kernel.registry import register
from shuhari.models.categorical import SUPPORTED, Categorical, sample_rows, score_rows
from shuhari.models.sampling import honour
from shuhari.models.spaces import discrete, spaces_of
from shuhari.needs import Noise, Traces
from shuhari.ports import Task


class _Table(nn.Module):
    def __init__(self, states: int, actions: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(states, actions))


@register("model", "tabular")
@dataclass
class Tabular:
    """Softmax over a table `module.logits` [S, A], initially zero, for Discrete observations and actions.

    Supports temperature, greedy and epsilon.
    """

    kind: Literal["exact", "chain", "bound"] = field(default="exact", init=False)
    module: nn.Module = field(init=False, repr=False)

    def build(self, task: Task) -> None:
        seen, does = spaces_of(task, "tabular")
        states, actions = discrete(seen, "observation", "tabular"), discrete(does, "action", "tabular")
        self._first, self._start = int(states.start), int(actions.start) or None
        self.module = self._table = _Table(int(states.n), int(actions.n))

    def __call__(self, batch: Batch) -> Categorical:
        return score_rows(self._rows(batch["context"]), batch)

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Traces:
        """Samples contexts: states [B] -> action [B] in 0..A-1, logp [B, 1]."""
        honour(sampling, SUPPORTED, "tabular")
        with torch.no_grad():
            return sample_rows(self._rows(contexts), sampling, noise, self._start)

    def decide(self, contexts: Tensor) -> dict[str, Tensor]:
        """Returns for contexts: states [B] the most probable `action` [B] as environments take it, and `logits` [B,
        A]."""
        logits = self._rows(contexts)
        return {"action": logits.argmax(-1) + (self._start or 0), "logits": logits}

    def _rows(self, states: Tensor) -> Tensor:
        return self._table.logits[states.reshape(-1) - self._first]

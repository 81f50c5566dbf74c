"""Advantages within a data set: an answer's outcome less the mean over the answers to its problem.

Source: "Improving Language Models with Advantage-based Offline Policy Gradients" (A-LoL), whose value of the first
policy is fitted to its graded answers; with several answers per problem their mean is that value. Left out: a value
head, for problems that have one answer.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from shuhari.batch import Batch
from shuhari.bounds import check
from shuhari.events import Event, Loaded
from shuhari.kernel.reduce import ends
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx
from shuhari.transforms.streams import zero_weight


@register("transform", "data_advantage")
@dataclass
class DataAdvantage:
    """Advantages for offline policy gradients: the outcome of a recorded answer less the mean of all answers to its
    problem (A-LoL).

    Stamps `into` [B, K]: the outcome `reward` of a row less the mean outcome of its problem's answers in the data set
    last loaded (`Loaded`, by the buffer `kept_answers`); 0 for an unknown problem.
    """

    into: str = "advantage"
    """Name of the column that receives the advantage."""
    reward: str = "reward"
    """Reward column that is the outcome of an answer; `reward` is the weighted sum that is trained."""
    positive: bool = True
    """Whether answers with an advantage of 0 or less get weight 0 on `stream`, as in the paper; false pushes them
    away."""
    stream: str = "rl"
    """Name of the weights `weight/<stream>` of the loss that learns from these rows."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"value": {}})

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.reward, f"weight/{self.stream}"

    @property
    def stamps(self) -> tuple[str, ...]:
        return (self.into,)

    def observe(self, event: Event) -> None:
        if isinstance(event, Loaded) and "problem" in event.batch:
            outcome, counts = event.batch.outcome(self.reward), ends(event.batch)
            found: dict[str, list[float]] = {}
            for problem, r, ok in zip(event.batch["problem"].tolist(), outcome.tolist(), counts.tolist(), strict=True):
                if ok and r == r:
                    found.setdefault(str(problem), []).append(r)
            self.state["value"] = {problem: sum(r) / len(r) for problem, r in found.items()}

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        value = self.state["value"]
        known = torch.tensor([value.get(str(p), torch.nan) for p in batch["problem"].tolist()])
        a = (batch.outcome(self.reward) - known).nan_to_num(0.0)
        batch = batch.put({self.into: a[:, None] * batch["mask"]})
        return zero_weight(batch, a <= 0, self.stream) if self.positive else batch

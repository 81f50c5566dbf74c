"""Delayed advice on collected decisions.

Source: "Found-RL: foundation model-enhanced reinforcement learning for autonomous driving", whose queue of questions is
answered in parallel with training. Left out: a model as advisor (a script answers), and dropped questions.

Axes: `B` rows, `A` entries of an action.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Count, Share, check
from shuhari.events import Amended
from shuhari.kernel.registry import register
from shuhari.models.experts import find_expert
from shuhari.needs import decisions, role_model
from shuhari.ports import Ctx


@register("transform", "advise")
@dataclass
class Advise:
    """Advice on collected decisions from the task's expert, which answers with a delay.

    Stamps `advice` [B, 1, A], the action that the advisor would have taken, in the units of the decision, and `advised`
    [B]; 0 and False if there is no answer yet. An answer arrives once `delay` more decisions have been collected; for
    rows already passed on it is sent to the buffer that keeps them (`Amended`). A transform of `[collect]`, where each
    decision passes once. Raises LookupError for a task without an expert, TypeError for a policy whose actions are not
    the environment's.
    """

    delay: Count = 100
    """Number of later decisions that are collected before an answer arrives; 0 answers at once."""
    right: Share = 0.8
    """Probability that the advice is the expert's action instead of a uniformly random one, drawn for each row."""
    policy: str = "expert"
    """Name of the task's scripted policy that gives advice, such as `expert`."""
    role: str = "policy"
    """Role of the policy whose decisions get advice."""
    reads = ("context",)
    stamps = ("advice", "advised")
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"seen": 0})  # and pending answers

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        state, asked = self.state, batch.decides.nonzero()[:, 0]  # [n] rows
        due = state["seen"] + torch.arange(1, len(asked) + 1) + self.delay
        state["seen"] += len(asked)
        said = self._ask(batch.take(asked), ctx)
        here = due <= state["seen"]
        advice, advised = said.new_zeros(len(batch), 1, said.shape[-1]), torch.zeros(len(batch), dtype=torch.bool)
        advice[asked[here]], advised[asked[here]] = said[here], True

        waits = {"id": batch["id"][asked[~here]], "due": due[~here], "advice": said[~here]}
        if "id" in state:
            waits = {name: torch.cat([state[name], new]) for name, new in waits.items()}
        told = waits["due"] <= state["seen"]
        if bool(told.any()):
            arrived = {"advice": waits["advice"][told], "advised": torch.ones(int(told.sum()), dtype=torch.bool)}
            ctx.tell(Amended(waits["id"][told], arrived))
        state |= {name: x[~told] for name, x in waits.items()}
        return batch.put({"advice": advice, "advised": advised})

    def _ask(self, batch: Batch, ctx: Ctx) -> Tensor:
        """Returns [n, 1, A] advice for each row."""
        expert, chance = find_expert(ctx.task, self.policy), find_expert(ctx.task, "random")
        answers = []
        seeds = (ctx.noise(batch, "advise").uniform(0, 2) * 2**31).long().tolist()
        for seen, seed in zip(batch["context"].numpy(), seeds, strict=True):
            rng = np.random.default_rng(seed)
            answers.append((expert if rng.random() < self.right else chance)(seen, rng))
        taken = torch.from_numpy(np.asarray(answers, np.float32))
        return decisions(role_model(ctx.models, self.role), taken)["action"].unsqueeze(1)

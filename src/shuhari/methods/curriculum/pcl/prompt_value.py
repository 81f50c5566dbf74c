"""Success rates from a value model: one forward over the prompt predicts how often the policy solves it.

Source: "Prompt Curriculum Learning for Efficient LLM Post-Training" (PCL, Gao et al. 2025, arXiv 2510.01135). The model
is a role of the run, and a part of the learner trains it: on the mean outcome of the sampled groups, at the first
decision (the transform `prompt_rate`), by the objective `value`.

Axes: `Q` problems.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.bounds import check
from shuhari.data import Problem
from shuhari.kernel.registry import register
from shuhari.ports import Ctx


@register("predictor", "value")
@dataclass
class ValueOfPrompt:
    """Predicts the success rate of a prompt by a value model's output at its end: one forward, no samples.

    The value [Q] that `role`, a critic over text (`causal_value`), gives the prompt before an answer begins, clipped to
    [0, 1]; the mean of several outputs. A new value head returns 0 for all, so that `target` first keeps the problems
    in order.
    """

    role: str = "critic"
    """Role of the value model over text; a part of the learner trains it."""

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    def __post_init__(self) -> None:
        check(self)

    async def predict(self, problems: Sequence[Problem], ctx: Ctx) -> tuple[Tensor, Tensor]:
        prompts: list[Any] = [ctx.encode(problem.prompt, self.role) for problem in problems]
        # the value before the first decision does not depend on it: any token will do
        asked = (ctx.engine.score(self.role, ids, ids[-1:], ["value"]) for ids in prompts)
        found = np.array([np.mean(answer["value"][0]) for answer in await asyncio.gather(*asked)])
        p = torch.from_numpy(found).float().clamp(0, 1)
        return p, p

"""A Beta posterior of every problem's success rate, from the samples taken in training.

Source: "Can Prompt Difficulty be Online Predicted for Accelerating RL Finetuning of Reasoning Models?" (MoPPS, arXiv
2507.04632), section 3. Left out: similarity between problems; each is predicted from its own samples only.

Axes: `Q` problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.bounds import AtLeast0, Count, Positive, Share, check
from shuhari.curricula.target import count_successes, name_of
from shuhari.data import Problem, Request
from shuhari.events import Collected, Event
from shuhari.kernel.registry import register
from shuhari.ports import Ctx


@register("predictor", "beta")
@dataclass
class Beta:
    """Predicts how often the policy solves each problem: a Beta posterior of the success rate, used by Thompson
    sampling.

    Problems are chosen by a draw from the posterior Beta(a, b); the expected rate is its mean. After a step with n
    samples of a problem, s of them right: a <- keep a + (1 - keep) prior[0] + s, and b likewise with n - s. A problem
    that was not sampled keeps its posterior. Probing unseen problems (`trials`) is the paper's prior from the base
    model.
    """

    keep: Share = 0.5
    """Share of the past counts that is kept at each step, as the policy changes; 1 is exact counting, 0 forgets all."""
    prior: tuple[Positive, Positive] = (1.0, 1.0)
    """Successes and failures (a, b) that each problem starts with, both above 0; (1, 1) is uniform."""
    trials: Count = 0
    """Number of samples that probe a problem when it first appears, charged as probes; 0 probes none."""
    worth: AtLeast0 = 3.0
    """Number of samples that each probing sample counts as."""
    reward: str = "reward"
    """Column whose outcome, in [0, 1], counts as success."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"posterior": {}})

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.reward,)

    def __post_init__(self) -> None:
        check(self)

    async def predict(self, problems: Sequence[Problem], ctx: Ctx) -> tuple[Tensor, Tensor]:
        if self.trials:
            await self._try([p for p in problems if name_of(p) not in self.state["posterior"]], ctx)
        known = self.state["posterior"]
        a, b = np.array([known.get(name_of(p), self.prior) for p in problems]).T
        rng = np.random.default_rng(ctx.rng("posterior").initial_seed())
        return torch.from_numpy(rng.beta(a, b)), torch.from_numpy(a / (a + b))

    async def _try(self, unseen: Sequence[Problem], ctx: Ctx) -> None:
        if unseen:
            batch = await ctx.probe([Request(p, self.trials) for p in unseen], tag="probe")
            for name, s in count_successes(batch, self.reward).items():
                self.state["posterior"][name] = self._update(self.prior, s.n * self.worth, s.total * self.worth, 1.0)

    def observe(self, event: Event) -> None:
        if isinstance(event, Collected):
            known = self.state["posterior"]
            for name, s in count_successes(event.batch, self.reward).items():
                known[name] = self._update(known.get(name, self.prior), s.n, s.total, self.keep)

    def _update(self, posterior: Sequence[float], n: float, s: float, keep: float) -> list[float]:
        past = (keep * old + (1 - keep) * prior for old, prior in zip(posterior, self.prior, strict=True))
        return [old + new for old, new in zip(past, (s, n - s), strict=True)]

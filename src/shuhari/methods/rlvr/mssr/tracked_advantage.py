"""A running baseline for each problem, so that one answer per problem is enough.

Source: "Stable and Efficient Single-Rollout RL for Multimodal Reasoning" (MSSR, Liu et al. 2025, arXiv 2512.18215),
after SPO (Xu and Ding 2025, arXiv 2509.13232). Left out: a `keep` that falls with the policy's change (KL) since the
problem was last seen; first answers of the base model instead of a prior.

Axes: `B` rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from shuhari.batch import Batch
from shuhari.bounds import Positive, PositiveShare, check
from shuhari.curricula.target import count_successes
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("transform", "tracked_advantage")
@dataclass
class Tracker:
    """Keeps a running success rate of every prompt as its baseline, so that one sample per prompt is enough (MSSR).

    Stamps `into` [B]: outcome - v, v = a / (a + b) being the problem's rate before this batch. Then a <- keep a + s and
    b <- keep b + n - s, for n graded answers in the batch, s of them right; other problems keep their tracker.

    Use `advantage` on it: `{column = "surplus", unit = "batch", scale = "batch"}`. Outcomes are in [0, 1], else raises
    ValueError; NaN if ungraded.
    """

    keep: PositiveShare = 0.9
    """Share of a problem's counts kept at each visit; lower it if the policy changes fast."""
    prior: tuple[Positive, Positive] = (1.0, 1.0)
    """Counts (right, wrong) of a problem at first sight; larger ones change more slowly."""
    reward: str = "reward"
    """Reward column, in [0, 1], that is the outcome of an answer; `reward` is the weighted sum that is trained."""
    into: str = "surplus"
    """Name of the column that receives the outcome less the baseline."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"trackers": {}})

    @property
    def stamps(self) -> tuple[str, ...]:
        return (self.into,)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.reward,)

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        known = self.state["trackers"]
        trackers = [known.get(str(problem), self.prior) for problem in batch["problem"].tolist()]
        a, b = torch.tensor(trackers, dtype=torch.float32).reshape(-1, 2).unbind(1)
        for name, s in count_successes(batch, self.reward).items():
            old = known.get(name, self.prior)
            known[name] = [self.keep * old[0] + s.total, self.keep * old[1] + s.n - s.total]
        return batch.put({self.into: batch.outcome(self.reward) - a / (a + b)})

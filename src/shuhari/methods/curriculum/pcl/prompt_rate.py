"""The success rate of a prompt, as a critic's target before an answer begins.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shuhari.batch import Batch
from shuhari.bounds import check
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import group_mean
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("transform", "prompt_rate")
@dataclass
class PromptRate:
    """Turns the mean outcome of each group into a target for a critic that predicts how often a prompt is solved.

    Stamps `into` [B, K], the mean outcome of the row's group, and the stream of that name, `weight/<into>`: 1 on the
    first decision of every answer, 0 elsewhere. A critic that learns on that stream (`terms.value = {target = "<into>",
    stream = "<into>"}`) regresses the rate of each prompt: with groups of one size, each prompt has the same weight.
    Ungraded and failed answers do not count; a group without others has weight 0.
    """

    into: str = "rate"
    """Name of the column with the rate, and of the stream that marks the decision at which a critic learns it."""
    reward: str = "reward"
    """Reward column whose mean is taken; `reward` is the weighted sum that is trained."""
    needs: tuple[Need, ...] = field(default=(), init=False)

    @property
    def stamps(self) -> tuple[str, ...]:
        return self.into, f"weight/{self.into}"

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.reward,)

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        outcome = batch.outcome(self.reward)
        counted = outcome.masked_fill(~find_usable(batch), float("nan"))
        rate, n = group_mean(batch, counted)
        rate = rate.masked_fill(n == 0, 0.0)
        begins = (batch["parent"] < 0) & find_usable(batch) & (n > 0)
        first = batch["mask"] & (batch["mask"].cumsum(1) == 1)
        return batch.put(
            {self.into: rate[:, None] * batch["mask"], f"weight/{self.into}": (first & begins[:, None]).float()}
        )

"""Margins of pairs by a reward model of other objectives, so that DPO on one objective's pairs leads to their sum.

Source: Zhou et al. 2023, "Beyond One-Preference-Fits-All Alignment: Multi-Objective Direct Preference Optimization",
equation 8. Left out: the hinge form, and margin models that are policies.

Axes: `B` rows, `P` links.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch

from shuhari.batch import Batch
from shuhari.bounds import Bounds, check
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.objectives.preference import read_links, scores
from shuhari.ports import Ctx


@register("transform", "other_margins")
@dataclass
class OtherMargins:
    """Add to the column `margin` of pairs (1 - share) / share times r(better) - r(worse), r a reward model's value.

    With `preference` at beta / share, the logit of a pair is (1 / share) (beta times the difference of log-ratios -
    (1 - share) times that of r), MODPO's. At share 1 it is DPO on the pairs. Raises KeyError for a batch without the
    links, ValueError for a value that is not finite.
    """

    role: str = "other"
    """Role of the reward model of the other objectives: a value for each answer, at its last token."""
    share: Annotated[float, Bounds(0, 1, open="low")] = 0.5
    """Weight of the objective that has compared the pairs, in (0, 1]; the others have the rest. Set the loss's `beta`
    to its own value divided by this one."""
    links: str = "pairs"
    """Name of the links that hold the pairs."""
    stamps: tuple[str, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "value"),)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"links/{self.links}",)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        index, columns = read_links(batch, self.links)
        better, worse = scores(batch, self.needs, "row")[index].unbind(1)
        gap = (1 - self.share) / self.share * (better - worse)
        margin = columns.get("margin", torch.zeros_like(gap)).nan_to_num(0.0)
        return batch.link(self.links, index, {**columns, "margin": margin + gap})

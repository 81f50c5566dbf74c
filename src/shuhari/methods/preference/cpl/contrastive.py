"""The loss of contrastive preference learning: a segment's score is the policy's own log-probability of it.

Source: Hejna et al. 2024, "Contrastive Preference Learning: Learning from Human Feedback without RL", equations 5 and
7. Left out: a score for a deterministic policy, and ranked segments, all pairs of which are compared.

Axes: `B` rows, `K` positions, `P` pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from shuhari.batch import Batch
from shuhari.bounds import Bounds, PositiveNumber, PositiveShare, check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.objectives.preference import read_links
from shuhari.ports import Ctx


@register("objective", "contrastive")
@dataclass
class Contrastive:
    """CPL's loss of pairs of segments, [P]: -log sigmoid(S of the preferred - bias S of the other), with S the sum over
    a segment's decisions of gamma^t alpha log pi(action), t counted from its first one.

    A segment is the rows of one `episode` of the batch, in order; links name its last row (buffer `segments`). Info:
    `accuracy`, the share of pairs whose preferred segment has the larger S, and `margin`, the difference of both.
    Raises KeyError without the links.
    """

    alpha: PositiveNumber = 0.1
    """Temperature: advantages are taken as alpha log pi; above 0."""
    bias: Annotated[float, Bounds(0, 1, open="low")] = 1.0
    """Factor of the other segment's score (the paper's lambda), in (0, 1]; below 1 a pair is also lost if both
    segments become improbable, which keeps the policy near the data. 1 compares both alike."""
    gamma: PositiveShare = 1.0
    """Discount of decisions from the beginning of the segment, in (0, 1]; the authors' code has 1."""
    role: str = "policy"
    """Role of the policy that is trained, a name under `[models]`."""
    links: str = "pairs"
    """Name of the links that hold the pairs."""
    couples: Literal["row", "batch"] = field(default="batch", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "log_prob", live=True),)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"links/{self.links}",)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        index, _ = read_links(batch, self.links)
        mask = batch["mask"]
        logp = torch.where(mask, batch[self.needs[0]], 0.0)
        _, segment = torch.unique(batch["episode"], return_inverse=True)
        n = mask.sum(1)  # decisions of each row
        before = n.cumsum(0) - n  # decisions of the batch before the row
        first = torch.full((int(segment.max()) + 1,), int(n.sum())).scatter_reduce(0, segment, before, "amin")
        place = (before - first[segment])[:, None] + mask.cumsum(1) - 1  # [B, K] t
        each = (self.gamma ** place.clamp(min=0) * logp).sum(1)
        s = ctx.at(self.alpha) * logp.new_zeros(len(first)).index_add(0, segment, each)
        better, worse = s[segment[index]].unbind(1)
        margin = better - worse
        info = {"accuracy": (margin > 0).float(), "margin": margin}
        return F.softplus(self.bias * worse - better), {k: v.detach() for k, v in info.items()}

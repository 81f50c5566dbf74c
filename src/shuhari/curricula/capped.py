"""A limit of answer length that varies over training: it oscillates, or grows.

Source: "SIRI: Scaling Iterative Reinforcement Learning with Interleaved Compression" (Wen et al. 2025, arXiv
2509.25176). `inner` chooses the problems. Left out: its stairs along a cosine. A cut answer is graded as it is: a task
that finds an answer in unfinished text would not count it as wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import cos, pi
from typing import Annotated, Literal

from shuhari.bounds import Bounds, Count, check
from shuhari.data import Number, Request, Sampling
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Curriculum
from shuhari.ports.declares import together


@register("curriculum", "length_limit")
@dataclass
class Capped:
    """A limit on the answer length that changes over training, shrinking and growing (SIRI).

    Answers to the requests of `inner` may have L(t) tokens at step t of the stage, at least one; L is the run's own
    limit (`sampling.max_new`). Without a period L(t) = share L. With one it goes from L over share L back to L: as a
    `cosine`, L(t) = L (share + (1 - share) (1 + cos(2 pi t / period)) / 2), or as a `stair`, share L in the first half
    of each period and L in the second. A request with its own limit keeps it. Evaluation uses the run's limit.
    """

    inner: Curriculum
    """Curriculum that chooses the problems."""
    share: Annotated[Number, Bounds(0, 1, open="low")] = 0.5
    """Smallest limit as a share of the run's `max_new`, in (0, 1]; a schedule makes the limit grow."""
    period: Count = 0
    """Steps from the full limit down and back; 0 holds the limit at `share`."""
    shape: Literal["cosine", "stair"] = "cosine"
    """Course of the limit within a period: a `cosine`, or a `stair` that starts with the short half."""

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), self.inner)

    def __post_init__(self) -> None:
        check(self)

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        cap = max(1, round(ctx.sampling.max_new * self.part(ctx.at(self.share), ctx.count)))
        return [_cap(request, cap) for request in await self.inner.select(n, ctx)]

    def part(self, share: float, t: float) -> float:
        """Returns the share of the limit at step t, given the smallest share."""
        if not self.period:
            return share
        at = t % self.period / self.period
        if self.shape == "stair":
            return share if at < 0.5 else 1.0
        return share + (1 - share) * (1 + cos(2 * pi * at)) / 2


def _cap(request: Request, cap: int) -> Request:
    """Returns the request with this limit, unless it sets its own."""
    own: Sampling | Mapping[str, object] | None = request.sampling
    if isinstance(own, Sampling) or (own and "max_new" in own):
        return request
    return replace(request, sampling={**(own or {}), "max_new": cap})  # type: ignore[arg-type]

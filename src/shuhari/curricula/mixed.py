"""Rests problems whose last group taught nothing: all its answers had the same outcome.

The filter by past results of many trainers, such as the easy and hard pools of prime-rl's buffer: dynamic sampling
(`drop_uniform_groups`) finds alike groups after it has paid for them, this remembers them. Left out: the order of the
problems (`inner` chooses), and any estimate of how hard a problem is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shuhari.bounds import AtLeast0, Count, Length, check
from shuhari.curricula.others import look_for
from shuhari.curricula.target import name_of
from shuhari.data import Info, Request
from shuhari.events import Collected, Event
from shuhari.kernel.pack import find_usable
from shuhari.kernel.reduce import spread_by
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Curriculum
from shuhari.ports.declares import together


@register("curriculum", "mixed_problems")
@dataclass
class Mixed:
    """The problems of another curriculum, but those whose last group had equal outcomes only now and then.

    A problem whose last group was all right, all wrong or otherwise equal is skipped the next `turns` times that
    `inner` offers it, and then tried again. A new problem is never skipped; groups with fewer than two graded answers
    change nothing. If `looks` draws from `inner` do not give enough, skipped problems fill the batch. The report has
    `curriculum/skipped`, the share of the problems offered since the last one that were skipped.
    """

    inner: Curriculum
    """Curriculum that offers the problems."""
    turns: Count = 3
    """Number of times that a problem is skipped after a group with equal outcomes; 0 skips none."""
    looks: Length = 8
    """Largest number of draws from `inner` in a step to find enough problems."""
    reward: str = "reward"
    """Column whose outcomes are compared, such as `reward` or `reward/score`."""
    tolerance: AtLeast0 = 1e-6
    """Largest range of outcomes that counts as equal."""
    state: dict[str, Any] = field(
        init=False, default_factory=lambda: {"rest": dict[str, int](), "offered": 0, "skipped": 0}
    )

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), self.inner)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.reward,)

    def __post_init__(self) -> None:
        check(self)

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        kept, resting = await look_for(self.inner, n, self.looks, ctx, lambda r: not self._skip(name_of(r.problem)))
        self.state["offered"] += len(kept) + len(resting)
        self.state["skipped"] += len(resting)
        return kept + resting[: n - len(kept)]

    def _skip(self, name: str) -> bool:
        """Whether a problem that is offered rests, which is then one of its turns less."""
        left = self.state["rest"].get(name, 0)
        if left:
            self.state["rest"][name] = left - 1
        return bool(left)

    def observe(self, event: Event) -> None:
        if not isinstance(event, Collected) or not len(event.batch):
            return
        outcome = event.batch.outcome(self.reward)
        rows = event.batch["leaf"] & find_usable(event.batch) & ~outcome.isnan()
        problem, index, n = event.batch["problem"][rows].unique(return_inverse=True, return_counts=True)
        spread = spread_by(outcome[rows], index, len(problem))
        for name, wide, graded in zip(problem.tolist(), spread.tolist(), n.tolist(), strict=True):
            if graded > 1:
                self.state["rest"][str(name)] = 0 if wide > self.tolerance else self.turns

    def report(self) -> Info:
        """Returns the share of offered problems that were skipped since the last report."""
        offered, skipped = self.state["offered"], self.state["skipped"]
        self.state |= {"offered": 0, "skipped": 0}
        return {"curriculum/skipped": skipped / offered} if offered else {}

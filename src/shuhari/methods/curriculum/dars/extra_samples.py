"""More samples for problems that are seldom solved: a second round, sized by the results of the first.

Source: "Depth-Breadth Synergy in RLVR: Unlocking LLM Reasoning Gains with Adaptive Exploration" (DARS, Yang et al.
2025, arXiv 2508.13755), and its released trainer. Left out: its breadth, which is a setting of batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from typing import Any, Literal

from shuhari.bounds import Length, check
from shuhari.data import Request, Trajectory, copy_with, list_scores
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Rollout
from shuhari.ports.declares import together
from shuhari.rollouts.single import Single

Schedule = Literal["equal", "hard"]


@register("rollout", "extra_samples")
@dataclass
class Deepen:
    """Draws more samples of a prompt that fewer than half of its samples solve; all form one group (DARS).

    Their number makes the sum of |advantage| over the group equal to that at a rate of one half (schedule `equal`), or,
    with p the rate, 2 (1 - p) times that (`hard`). See `count_more`. p is the mean `measure` of the graded samples;
    without any there is no second round. Charges `rounds`. With `most` at n it equals `of`, bit for bit.
    """

    most: Length = 32
    """Largest number of samples of a prompt in both rounds; at `rollout.n` there is no second round."""
    schedule: Schedule = "equal"
    """Weight of hard prompts: "equal", as much as a half-solved one; "hard", up to twice that (with `most` = 64 in the
    paper)."""
    scaled: bool = False
    """Whether advantages are divided by the group's standard deviation; set it to match `advantage.scale = "group"`."""
    measure: str = "score"
    """Name of the reward, in [0, 1], whose mean is the share of right samples."""
    of: Rollout = field(default_factory=Single)
    """Rollout that samples both rounds."""

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), self.of)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"reward/{self.measure}",)

    def __post_init__(self) -> None:
        check(self)

    @property
    def accepts(self) -> Mapping[str, Any]:
        return self.of.accepts

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        group = await self.of.group(request, ctx)
        ctx.charge("rounds", 1)
        if request.n >= self.most:
            return group
        group = await ctx.grade(group, until=self.measure)
        scores = list_scores(group, self.measure)
        if not scores:
            return group
        more = count_more(sum(scores) / len(scores), request.n, self.most, self.schedule, self.scaled)
        if not more:
            return group
        ctx.charge("rounds", 1)
        found = await self.of.group(replace(request, n=more, key=f"{request.key}/1"), ctx)
        return [*group, *(copy_with(t, request=request) for t in found)]


def count_more(p: float, n: int, most: int, schedule: Schedule = "equal", scaled: bool = False) -> int:
    """Returns how many samples to add to n with rate p, so that N S(p) equals n S(1/2), times 2 (1 - p) for `hard`:
    S(p) = 2 p (1 - p) is the mean |advantage|, or 2 sqrt(p (1 - p)) if scaled. At most `most` in all, none for p >=
    1/2; p = 0 counts as half a right answer of the n."""
    p = p if p > 0 else 0.5 / n
    if p >= 0.5:
        return 0
    size = 2 * sqrt(p * (1 - p)) if scaled else 2 * p * (1 - p)
    peak = n if scaled else n / 2
    wanted = (2 * (1 - p) if schedule == "hard" else 1) * peak
    return max(0, min(ceil((wanted - n * size) / size), most - n))

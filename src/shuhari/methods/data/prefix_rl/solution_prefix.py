"""Groups that begin inside an earlier right answer, for a share of the problems.

Source: "Reuse your FLOPs: Scaling RL on Hard Problems by Conditioning on Very Off-Policy Prefixes" (PrefixRL, arXiv
2601.18795). A prefix is the beginning of the problem's solution, as forced tokens after the prompt: it is not sampled,
charged or learnt from, and what follows is scored after it. Evaluate without it: `evaluate.rollout = "single"`. Left
out: how the right answer was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from shuhari.bounds import Share, check
from shuhari.data import Request, Trajectory, copy_with
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Rollout, ability
from shuhari.ports.declares import together
from shuhari.rollouts.rounds import make_hint
from shuhari.rollouts.single import Single


@register("rollout", "solution_prefix")
@dataclass
class Prefixed:
    """Lets some groups continue from the first part of a known solution, so that hard prompts are sometimes solved
    (PrefixRL).

    With probability `share` a group begins after a part of the problem's solution, uniform between the shares `low` and
    `high` of its tokens; else at the prompt. A group has one prefix, so its baseline is for one length. Adds to the
    info of each sample, and so as a column: `hint`, the share of the solution shown. Raises ValueError for a `low`
    above `high`, ContractError for a problem without a solution in text.
    """

    share: Share = 0.5
    """Share of the groups that begin after a part of the solution; 0 turns it off, 1 never begins at the prompt."""
    low: Share = 0.4
    """Shortest part of the solution that is shown, as a share of its tokens."""
    high: Share = 0.8
    """Longest part of the solution that is shown, as a share of its tokens; larger is easier."""
    of: Rollout = field(default_factory=Single)
    """Rollout that samples the answers."""

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together(("hint",), self.of)

    def __post_init__(self) -> None:
        check(self)
        if self.low > self.high:
            raise ValueError(f"prefixed: low is {self.low} and high {self.high}: expected low to be at most high")

    @property
    def accepts(self) -> Mapping[str, Any]:
        return self.of.accepts

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        chance, place = torch.rand(2, generator=ctx.rng("prefixed", request.key)).tolist()
        length = self.low + (self.high - self.low) * place if chance < self.share else 0.0
        steps, shown = make_hint(request.problem, length, ctx, ability(self.of, "role"))
        found = await self.of.group(replace(request, prefix=(*request.prefix, *steps)), ctx)
        return [copy_with(t, request=request, info={**t.info, "hint": shown}) for t in found]

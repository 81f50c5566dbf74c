"""Groups in which another role answers too, so that its answers are compared with the policy's.

Source: Xie et al. 2024, "Exploratory Preference Optimization", algorithm 1. Left out: environments, several turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shuhari.bounds import Length, check
from shuhari.data import ContractError, Request, Step, Trajectory, copy_with
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Rollout, ability
from shuhari.ports.declares import together
from shuhari.rollouts.single import Single, find_status


@register("rollout", "beside_role")
@dataclass
class BesideRole:
    """Lets another role give the last answers of each group, beside those of the policy.

    `of` samples the first n - `others`. All are rows of the policy, so that they are paired and the policy's
    log-probability of each is trained; that with which the other role has sampled is left unknown (NaN), and importance
    ratios refuse it. The column `other` is 1 for its answers and 0 for the policy's. Raises ContractError for a problem
    with an environment, and if no answer is left for the policy.
    """

    role: str = "reference"
    """Role that gives the other answers, a name under `[models]`."""
    others: Length = 1
    """Number of answers of a group that the other role gives, fewer than `rollout.n`."""
    of: Rollout = field(default_factory=Single)
    """Rollout that samples the policy's answers, in one turn."""
    least_n = 2

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together(("other",), self.of)

    def __post_init__(self) -> None:
        check(self)

    @property
    def accepts(self) -> Mapping[str, Any]:
        return self.of.accepts

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        whose = f"beside_role: problem {request.problem.id!r} of {request.problem.task}"
        if ctx.task.environment(request.problem) is not None:
            raise ContractError(f"{whose} is played: expected answers of one turn")
        if request.n <= self.others:
            raise ContractError(f"{whose}: n is {request.n} and others is {self.others}: expected a larger rollout.n")
        own = await self.of.group(replace(request, n=request.n - self.others), ctx)
        start, trained = ctx.encode(request.problem.prompt, self.role), ability(self.of, "role")
        key = (request.key, self.role, "beside")
        traces = await ctx.engine.sample(self.role, start, request.sampling, self.others, key=key)
        steps = (Step.of(start, t.action, None, t.version, role=trained, info=t.info) for t in traces)
        beside = [Trajectory(request, (s,), find_status(t)) for s, t in zip(steps, traces, strict=True)]
        return [
            copy_with(t, request=request, info={**t.info, "other": other})
            for other, answers in ((0.0, own), (1.0, beside))
            for t in answers
        ]

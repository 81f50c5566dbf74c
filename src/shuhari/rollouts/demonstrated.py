"""Rollouts that put a demonstration of the same prompt into each group.

Left out: environments (the buffer `demos` plays their demonstrations), several solutions of one problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shuhari.data import ContractError, Request, Trajectory, copy_with, sum_reward
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Rollout, ability
from shuhari.ports.declares import together
from shuhari.rollouts.demonstrations import show_solution
from shuhari.rollouts.single import Single


@register("rollout", "with_solution")
@dataclass
class Demonstrated:
    """Puts the problem's solution into each group as its last sample, beside the policy's own (LUFFY, RL-PLUS).

    The solution has its end token; `of` samples the other n - 1. The column `demo` is 1 for the solution and 0 for the
    others. The solution's log-probability is unknown (NaN); objectives use the policy's own. Raises ContractError if
    the problem has no solution or has an environment, or if n is 1.
    """

    measure: str = "score"
    """Name of the reward that the solution must earn above 0; otherwise it is left out of its group."""
    of: Rollout = field(default_factory=Single)
    """Rollout that samples the other answers."""
    least_n = 2

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together(("demo",), self.of)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"reward/{self.measure}",)

    @property
    def accepts(self) -> Mapping[str, Any]:
        return self.of.accepts

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        problem = request.problem
        whose = f"demonstrated: problem {problem.id!r} of {problem.task}"
        if problem.solution is None or ctx.task.environment(problem) is not None:
            raise ContractError(f"{whose}: expected a solution, as text or token ids, not an environment")
        if request.n < 2:
            raise ContractError(f"{whose}: no sample is left beside the demonstration: set rollout.n to 2 or more")
        role = ability(self.of, "role")
        (step,) = show_solution(problem, problem.solution, ctx, role).steps
        step = replace(step, info={"text": ctx.text(step.action, role)})
        (demo,) = await ctx.grade([Trajectory(request, (step,), info={"demo": 1.0})], until=self.measure)
        own = await self.of.group(replace(request, n=request.n - 1), ctx)
        group = [copy_with(t, request=request, info={**t.info, "demo": 0.0}) for t in own]
        return [*group, demo] if sum_reward(demo.steps, self.measure) > 0 else group

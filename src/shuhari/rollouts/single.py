"""Episodes of one policy call: answers to prompts, and bandits.

Left out: environments, turns, tools; what follows the one action is left to the graders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shuhari.data import EMPTY, ContractError, Payload, Request, Status, Step, Trajectory, is_tokens
from shuhari.kernel.registry import register
from shuhari.needs import Trace
from shuhari.ports import Ctx


@register("rollout", "single")
@dataclass
class Single:
    """Samples n answers to a prompt, each by one call of the policy. A text cut at its length limit is TRUNCATED.

    The request's `prefix` comes first in each trajectory, as steps without a decision; the policy continues from there.
    """

    role: str = "policy"
    """Role of the policy that answers, a name under `[models]`."""
    accepts: Mapping[str, Any] = field(init=False, default_factory=lambda: EMPTY)
    stamps = ()

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        """Samples one group. Raises TypeError for a prefix before a prompt that is not text, and ContractError for a
        problem with an environment, which would never be stepped."""
        if ctx.task.environment(request.problem) is not None:
            whose = f"problem {request.problem.id!r} of {request.problem.task}"
            raise ContractError(f"the rollout 'single' asks once, and {whose} is played: set rollout.use = 'episode'")
        context = ctx.encode(request.problem.prompt, self.role)
        prefix = force_steps(request.prefix, context, self.role, ctx)
        if prefix:
            context = np.concatenate([prefix[-1].context, prefix[-1].action])
        traces = await ctx.engine.sample(self.role, context, request.sampling, request.n, key=(request.key, self.role))
        parent = len(prefix) - 1 if prefix else None
        return [Trajectory(request, (*prefix, self._step(context, t, parent)), find_status(t)) for t in traces]

    def _step(self, context: Payload, trace: Trace, parent: int | None) -> Step:
        return Step.of(context, trace.action, trace.logp, trace.version, parent=parent, role=self.role, info=trace.info)


def find_status(trace: Trace) -> Status:
    """Returns the status of an episode from its last trace: TRUNCATED if a limit cut it, else FINISHED."""
    return Status.TRUNCATED if trace.info.get("ended") is False else Status.FINISHED


def force_steps(prefix: tuple[Step, ...], context: Payload, role: str, ctx: Ctx) -> tuple[Step, ...]:
    """Returns the steps of a prefix as a chain of forced steps: mask False, no log-probability. Texts are encoded."""
    steps: list[Step] = []
    for step in prefix:
        action, own = ctx.encode_text(step.action, role), step.context if is_tokens(step.context) else context
        if not (is_tokens(own) and is_tokens(action)):
            raise TypeError(f"a prefix goes before text: expected token ids or a string, got {str(step.action)[:60]!r}")
        assert isinstance(own, np.ndarray) and isinstance(action, np.ndarray)
        mask, version = np.zeros(len(action), np.bool_), np.full(len(action), -1)
        parent = len(steps) - 1 if steps else None
        steps.append(
            replace(step, context=own, action=action, mask=mask, version=version, logp=None, role=role, parent=parent)
        )
        context = np.concatenate([own, action])
    return tuple(steps)

"""Answers from other runs, in groups of their own, as if the policy had just sampled them.

Source: SAPO (Amico et al. 2025, arXiv 2509.08721), section 4: external answers are encoded again, graded by the node's
own verifier, and have the log-probabilities of the node's own policy. Left out: turns and environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shuhari.data import ContractError, Request, Trajectory, copy_with
from shuhari.kernel.pack import pack
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx, Rollout, ability
from shuhari.ports.declares import together
from shuhari.rollouts.single import Single

SAID = "said"  # the request setting with its answers: trajectories of one step each


@register("rollout", "shared_answers")
@dataclass
class Foreign:
    """Treats answers of other runs as if the policy had just sampled them (SAPO); other requests are sampled as usual.

    A request whose settings have `said` uses these answers: texts that `shared_groups` encoded and graded. Their
    log-probabilities are those of the current `role`, so a ratio is over the policy before its update and ignores the
    actual sampler: no correction is made. `of` must answer in one turn. Raises ContractError for a problem with an
    environment, and for an engine with groups in flight over steps: the current role would then match no version that
    the engine samples from.
    """

    of: Rollout = field(default_factory=Single)
    """Rollout that samples the run's own answers, in one turn."""
    role: str = "policy"
    """Role of the policy that scores the answers of others."""

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,)

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), self.of)

    @property
    def accepts(self) -> Mapping[str, Any]:
        return {**self.of.accepts, SAID: ()}

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        if ctx.task.environment(request.problem) is not None:
            whose = f"problem {request.problem.id!r} of {request.problem.task}"
            raise ContractError(f"foreign: {whose} is played: expected answers of one turn, which can be told as text")
        if SAID not in request.settings:
            return await self.of.group(request, ctx)
        if staleness := ability(ctx.engine, "staleness"):
            raise ContractError(f"foreign: engine.staleness is {staleness}, and answers that were given elsewhere get "
                                "the log-probabilities of the role as it is now: expected 0")  # fmt: skip
        said = [copy_with(t, request=request) for t in request.settings[SAID]]
        need = Need((self.role,), "log_prob", exact=True)
        logp = ctx.score(pack(said), [need])[need].numpy()  # [answers, K], padded at the end
        return [self._score(t, x, ctx.version) for t, x in zip(said, logp, strict=True)]

    def _score(self, t: Trajectory, logp: Any, version: int) -> Trajectory:
        (step,) = t.steps
        k = len(step.mask)
        fields = {"logp": logp[:k].astype(np.float32), "version": np.full(k, version, np.int64)}
        return copy_with(t, steps=(replace(step, **fields),))

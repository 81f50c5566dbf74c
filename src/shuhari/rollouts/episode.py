"""Whole episodes in an environment, one coroutine per sample: for evaluation, small environments and multi-turn text.

The engine answers all samples that wait at the same time with one forward. Left out: tools (the environment handles
them), lanes that persist across updates (`vector`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shuhari.bounds import AtLeast0, Length, check
from shuhari.data import Request, Status, Trajectory
from shuhari.engines.clock import run_together
from shuhari.kernel.registry import register
from shuhari.models.text.rows import NoRoom
from shuhari.ports import Ctx, Environments, Window, ability
from shuhari.ports.declares import together
from shuhari.rollouts.playing import EnvironmentFailed, Playing
from shuhari.rollouts.single import Single


@register("rollout", "episode")
@dataclass
class Episode:
    """Plays whole episodes of an environment, such as several turns of text, each sample on its own.

    Plays n episodes of a problem, each until its environment ends it or `max_steps` decisions are made. Each model call
    is a step that continues the previous one; a closing step holds the last context, with `cont` 0 after FINISHED and 1
    after TRUNCATED or CUT (by `max_steps`). A text that outgrows the model after some decisions is TRUNCATED; one
    without room for the first decision raises. The environment gets the policy trace's `taken`, else its decoded
    `text`, else the action; its `step` may be a coroutine. An environment that raises, or takes longer than `timeout`,
    gives an ERROR trajectory of the steps so far, counted and shown as `errors`, with the message in `info["error"]`.
    Any other exception in one sample cancels the rest. The request's `prefix` is played first, as steps without
    decisions, until the environment ends. `Playing` describes how observations become contexts.
    """

    role: str = "policy"
    """Role of the policy that acts, a name under `[models]`."""
    max_steps: Length = 1000
    """Number of decisions (calls of a model) after which an episode is cut."""
    timeout: AtLeast0 = 600.0
    """Seconds that one step of the environment may take; 0 sets no limit."""
    acts: tuple[str, ...] = ()
    """Roles that act in turn, repeatedly, in a game of several; empty if `role` acts alone."""
    environments: Environments | None = None
    """Source of the environments, such as `tools`; None takes the task's."""
    context: Window | None = None
    """Window that decides what the model sees of a long episode; None shows all of it."""

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return () if self.environments is None else together((), self.environments)

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        """Returns the roles that act, in turn."""
        return self.acts or (self.role,)

    @property
    def accepts(self) -> Mapping[str, Any]:
        return {"max_steps": self.max_steps}

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        """Plays one group; a problem without an environment is one call of the first role, as by `single`."""
        limit = int(request.settings.get("max_steps", self.max_steps))
        envs = [self._environment(request, ctx) for _ in range(request.n)]
        if envs and envs[0] is None:
            return await Single(self.roles[0]).group(request, ctx)
        shared = request, ctx, self.roles, self.context, self.timeout
        return await run_together(_play(Playing(env, *shared, j), limit) for j, env in enumerate(envs))

    def _environment(self, request: Request, ctx: Ctx) -> Any:
        own = self.environments
        return ctx.task.environment(request.problem) if own is None else own.environment(request, ctx)


async def _play(play: Playing, limit: int) -> Trajectory:
    try:
        await play.begin()
        for step in play.request.prefix:
            if play.status is None:
                await play.give(step.action)
        while play.status is None and play.decided < limit:
            await play.decide()
    except NoRoom:
        if not play.decided:
            raise
        play.status = Status.TRUNCATED
    except EnvironmentFailed as error:
        play.ctx.record_failure("errors", error.__cause__ or error, "environment")
        return Trajectory(play.request, tuple(play.steps), Status.ERROR, {"error": str(error)})
    finally:
        ability(play.env, "close")()
    return play.trajectory()

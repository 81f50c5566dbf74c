"""Whole episodes in an environment, one coroutine a sample: for evaluation, small worlds, and text in several turns.

The engine serves all samples that wait at the same time with one forward. Left out: tools (an environment's own
business), other roles in the same episode, lanes that live on (`vector`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shuhari.data import EMPTY, Payload, Problem, Request, Status, Step, Trajectory, is_tokens, nearest
from shuhari.models.text.rows import NoRoom
from shuhari.needs import Trace
from shuhari.ports import Ctx
from shuhari.registry import register
from shuhari.rollouts.single import Single


@register("rollout", "episode")
@dataclass
class Episode:
    """n episodes of the problem's environment, played by `role` until it ends them or `max_steps` decisions are made.

    Each call of the policy is a step that continues the one before; a closing step holds the last observation, with
    `cont` 0 after FINISHED and 1 after TRUNCATED or CUT (by `max_steps`). A text that has outgrown the model after some
    decisions is TRUNCATED; one that leaves no room for the first raises. Where contexts are text, an observation is
    encoded and appended to context and action; else it is the next context. The environment gets what the policy's
    trace calls `environment`, else its decoded `text`, else the action; its `step` may be a coroutine, which is given
    `timeout` seconds (0: no bound). One that raises, or takes longer, makes an ERROR trajectory of the steps so far,
    counted and shown as `errors`, with the message in `info["error"]`. The request's `prefix` is played first, decided
    by nobody.
    """

    role: str = "policy"
    max_steps: int = 1000
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(f"episode: max_steps is {self.max_steps}: expected at least 1")
        if self.timeout < 0:
            raise ValueError(f"episode: timeout is {self.timeout}: expected seconds, or 0 for no bound")

    @property
    def accepts(self) -> Mapping[str, Any]:
        return {"max_steps": self.max_steps}

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        """A problem without an environment is one call, as by `single`. Raises ValueError for a setting that is none
        of its own."""
        settings = {**self.accepts, **request.settings}
        if len(settings) > len(self.accepts):
            name = min(settings.keys() - self.accepts.keys())
            raise ValueError(f"the rollout 'episode' takes no setting {name!r}; {nearest(name, self.accepts)}")
        limit, envs = int(settings["max_steps"]), [ctx.task.environment(request.problem) for _ in range(request.n)]
        if envs and envs[0] is None:
            return await Single(self.role).group(replace(request, settings=EMPTY), ctx)
        return list(await asyncio.gather(*(self._play(env, request, j, limit, ctx) for j, env in enumerate(envs))))

    async def _play(self, env: Any, request: Request, j: int, limit: int, ctx: Ctx) -> Trajectory:
        episode = _Episode(self.role, ctx.encode(env.reset(request.problem), self.role), self.timeout)
        try:
            for forced in request.prefix:
                action = ctx.encode(forced.action, self.role)
                trace = Trace(action, None, -1, {"text": ctx.text(action, self.role)} if is_tokens(action) else {})
                await episode.act(env, trace, ctx, decided=False)
            while episode.status is None and episode.decided < limit:
                key = (request.key, self.role, j, episode.decided)
                (trace,) = await ctx.engine.sample(self.role, episode.context, request.sampling, 1, key=key)
                await episode.act(env, trace, ctx)
        except NoRoom:
            if not episode.decided:
                raise
            episode.status = Status.TRUNCATED
        except EnvironmentFailed as error:
            ctx.complain("errors", error.__cause__ or error, "environment")
            return Trajectory(request, tuple(episode.steps), Status.ERROR, {"error": str(error)})
        finally:
            getattr(env, "close", lambda: None)()
        status = episode.status or Status.CUT
        last = len(episode.steps) - 1 if episode.steps else None
        cont = 0.0 if status is Status.FINISHED else 1.0
        closing = Step.closing(episode.context, last, cont, role=self.role)
        return Trajectory(request, (*episode.steps, closing), status)


async def replayed(problem: Problem, env: Any, turns: Sequence[Payload], role: str, ctx: Ctx) -> Trajectory:
    """A text episode of turns that are given, as token ids: all decided, with unknown log-probability, by version -1.
    It has no closing step: a demonstration is one row. Raises ValueError where the environment ends before the last
    turn or raises, TypeError for one whose observations are not text."""
    episode = _Episode(role, ctx.encode(env.reset(problem), role))
    whose = f"problem {problem.id!r} of {problem.task}"
    if not is_tokens(episode.context):
        raise TypeError(f"{whose}: its environment is not text: demonstrations are token ids")
    try:
        for turn in turns:
            if episode.status is not None:
                done = len(episode.steps)
                raise ValueError(f"{whose}: the environment ends after turn {done} of the {len(turns)} of its solution")
            await episode.act(env, Trace(turn, None, -1, {"text": ctx.text(turn, role)}), ctx)
    except EnvironmentFailed as error:
        raise ValueError(f"{whose}: turn {len(episode.steps)} of its solution: {error}") from error
    finally:
        getattr(env, "close", lambda: None)()
    return Trajectory(Request(problem), tuple(episode.steps), episode.status or Status.CUT)


class EnvironmentFailed(Exception):
    """An environment raised in the middle of an episode."""


@dataclass
class _Episode:
    """One episode as it grows."""

    role: str
    context: Payload
    timeout: float = 0.0
    steps: list[Step] = field(default_factory=list)
    status: Status | None = None
    decided: int = 0

    async def act(self, env: Any, trace: Trace, ctx: Ctx, *, decided: bool = True) -> None:
        """Take one action; keep the step with its rewards, and move on to the next context."""
        info = {k: v for k, v in trace.info.items() if k != "environment"}
        parent = len(self.steps) - 1 if self.steps else None
        fields: dict[str, Any] = {"parent": parent, "role": self.role, "info": info}
        step = Step.of(self.context, trace.action, trace.logp, trace.version, **fields)
        if not decided:
            step = replace(step, mask=np.zeros_like(step.mask))
        self.steps.append(step)
        self.decided += decided
        try:
            answer = env.step(trace.info.get("environment", trace.info.get("text", trace.action)))
            if inspect.isawaitable(answer):
                answer = await asyncio.wait_for(answer, self.timeout or None)
            observation, reward, self.status = answer
            self.context = _following(self.context, trace.action, observation, self.role, ctx)
        except TimeoutError as error:
            late = TimeoutError(str(error) or f"no answer in {self.timeout:g} s ([rollout] timeout)")
            raise EnvironmentFailed(f"TimeoutError: {late}") from late
        except Exception as error:
            raise EnvironmentFailed(f"{type(error).__name__}: {error}") from error
        self.steps[-1] = replace(step, reward=dict(reward))


def _following(context: Payload, action: Payload, observation: Any, role: str, ctx: Ctx) -> Payload:
    """The context after an action: what was observed, behind all that was read and said so far where it is text."""
    if not is_tokens(context):
        return ctx.encode(observation, role)
    if observation is None or (isinstance(observation, str) and not observation):
        return np.concatenate([context, action])
    seen = observation if is_tokens(observation) else ctx.encode(observation, role)
    return np.concatenate([context, action, seen])

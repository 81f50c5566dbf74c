"""One episode in progress: its decisions and observations so far, the next context, and the resulting steps.

The rollout `episode` plays it to the end; a custom rollout may decide in between, and demonstrations are played through
it too. Left out: when to stop, which the rollout decides.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from shuhari.data import (
    PAID,
    Array,
    ContractError,
    Payload,
    Request,
    Status,
    Step,
    Trajectory,
    Whole,
    copy_with,
    is_tokens,
    nearest,
)
from shuhari.engines.time_limit import contained, guard
from shuhari.kernel.abilities import find_missing
from shuhari.kernel.profile import waited
from shuhari.kernel.recall import MEMORY, with_memory
from shuhari.needs import Trace, decisions, role_model
from shuhari.ports import Ctx, Window, ability, is_text
from shuhari.tasks.contract import explain_facts, explain_first, explain_step
from shuhari.tasks.tells import EXECUTED


class EnvironmentFailed(Exception):
    """The environment raised in the middle of an episode, or took too long."""


@dataclass
class Playing:
    """Sample `number` of a request's group in the environment `env`. `acts`: the roles in turn, repeatedly, unless the
    environment names who acts next.

    If contexts are text, an observation is encoded and appended to context and action; otherwise it is the next
    context. An observation of type `Whole` replaces the context. `window`, if given, builds what each decision sees
    instead. For text, a step's `info["observation"]` is the environment's reply to it.

    start: the beginning of the context: the first observation, or the last `Whole`. turns: (action, observation) of
    each step since then, as token ids, if contexts are text. context: the next context, unless a window changes it.
    decided: number of model calls so far; moves: number of actions that the environment got.
    """

    env: Any
    request: Request
    ctx: Ctx
    acts: tuple[str, ...] = ("policy",)
    window: Window | None = None
    timeout: float = 0.0  # seconds of a step; 0: no limit
    number: int = 0
    prompt: Payload = None  # the beginning of the context, as the environment returned it
    start: Payload = None
    context: Payload = None
    turns: list[tuple[Array, Array]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    status: Status | None = None
    decided: int = 0
    moves: int = 0
    named: str | None = None  # by the environment: whose turn it is
    memories: dict[str, Array] = field(default_factory=dict)  # what each role that remembers carries on
    recalled: Array | None = None  # what whom was asked last had carried so far

    @property
    def role(self) -> str:
        """Returns the role that acts next."""
        return self.named or self.acts[self.moves % len(self.acts)]

    async def begin(self) -> None:
        """Resets the environment, which first gets the context to call models (`bind`) if it wants it."""
        ability(self.env, "bind")(self.ctx, (self.request.key, "environment", self.number))
        if lack := find_missing(self.env, "reset", "step"):
            raise ContractError(f"{type(self.env).__name__} is not an environment: it has no {' and no '.join(lack)}")
        try:
            with guard(lambda: self._name("reset"), self.timeout):
                first = self.env.reset(self.request.problem)
            with contained():
                first = await first if inspect.isawaitable(first) else first
        except Exception as error:
            self._note_place(error, "the reset")
            raise
        self._ask_turn("reset")
        self._require(explain_first(first, text=self._reads_text()), "reset")
        self._restart(first)

    async def look(self) -> Payload:
        """Returns the context of the next decision."""
        if self.window is not None:
            self.context = await self.window(self)
        return self.context

    async def decide(self) -> None:
        """Plays one turn: the acting role decides, and the environment replies."""
        await self.act(await self._sampled(await self.look()))

    async def give(self, action: Payload, *, decided: bool = False) -> None:
        """Plays one turn with a given action of unknown origin: a forced one, or with `decided` one to learn from."""
        await self.look()
        if self._memory_now() is not None:  # who remembers has to have seen this too
            await self._sampled(self.context)
        ids = self.ctx.encode_text(action, self.role)
        info = {"text": self.ctx.text(ids, self.role)} if is_tokens(ids) else {}
        await self.act(Trace(ids, None, -1, info), decided=decided)

    async def ask(self, context: Payload) -> Trace:
        """Makes a decision of the acting role that no environment gets (a summary, a plan): a step of the episode like
        any other. The caller sets the next context."""
        trace = await self._sampled(context)
        self._keep(context, trace)
        return trace

    async def act(self, trace: Trace, *, decided: bool = True, role: str = "") -> None:
        """Passes an action to the environment, keeps the step with its rewards and the environment's `facts` (a number
        is a column [B], an array one [B, K, ...]), and moves to the next context. `role`: the role that acted, if not
        the one in turn. Raises EnvironmentFailed; ContractError if the environment breaks its contract
        (`tasks.contract`)."""
        self._keep(self.context, trace, decided=decided, role=role)
        self.moves += 1
        try:
            with guard(lambda: self._name("step"), self.timeout):
                answer = self.env.step(self._to_environment(trace))
            if inspect.isawaitable(answer):
                async with asyncio.timeout(self.timeout or None):  # `wait_for` of Python 3.11 may lose a cancellation
                    with contained():
                        answer = await waited(answer)
            self._require(explain_step(answer, text=is_tokens(self.context)), "step")
            observation, reward, self.status = answer
            self._ask_turn("step")
            self._pay(self.steps[-1].role, reward)
            reply = self._see(trace.action, observation)
        except ContractError:
            raise
        except TimeoutError as error:
            late = TimeoutError(str(error) or f"no answer in {self.timeout:g} s ([rollout] timeout)")
            self._note_place(late, f"step {self.moves} of an episode")
            raise EnvironmentFailed(f"TimeoutError: {late}") from late
        except Exception as error:
            self._note_place(error, f"step {self.moves} of an episode")
            raise EnvironmentFailed(f"{type(error).__name__}: {error}") from error
        step = self.steps[-1]
        info = {**step.info, "observation": reply} if reply else step.info
        self.steps[-1] = self._add_reported(copy_with(step, reward=dict(reward), info=info))

    def _ask_turn(self, after: str) -> None:
        """Lets the environment name the next role, if it can and the episode goes on."""
        turn = ability(self.env, "turn")
        if turn is None or self.status is not None:
            return
        with guard(lambda: self._name("turn"), self.timeout):
            self.named = turn()
        wrong = f"gave {self.named!r} after a {after}; {nearest(str(self.named), self.acts)} (rollout.acts)"
        self._require("" if self.named is None or self.named in self.acts else wrong, "turn")

    def _name(self, call: str) -> str:
        return f"the {call} of {type(self.env).__name__} ([rollout] timeout)"

    def _note_place(self, error: Exception, place: str) -> None:
        """Adds to an environment's error a note where it was raised, unless it has one."""
        if not vars(error).get("__notes__"):
            error.add_note(f"raised by {place} of {type(self.env).__name__}")

    def trajectory(self) -> Trajectory:
        """Returns the episode, closed by a step that holds the last context: `cont` 0 after FINISHED, else 1. CUT if
        the episode has not ended."""
        status = self.status or Status.CUT
        last = len(self.steps) - 1 if self.steps else None
        role = self.steps[-1].role if self.steps else self.role
        closing = Step.closing(self.context, last, 0.0 if status is Status.FINISHED else 1.0, role=role)
        if role in self.memories:
            closing = copy_with(closing, info={**closing.info, MEMORY: self.memories[role][None]})
        return Trajectory(self.request, (*self.steps, closing), status, graded_by={PAID: ()})

    async def _sampled(self, context: Payload) -> Trace:
        key = (self.request.key, self.role, self.number, self.decided)
        self.recalled = self._memory_now()
        shown = with_memory(context, self.recalled)
        (trace,) = await self.ctx.engine.sample(self.role, shown, self.request.sampling, 1, key=key)
        if self.recalled is not None:
            self.memories[self.role] = trace.memory
        return trace

    def _memory_now(self) -> Array | None:
        """[S] what the role at turn carries on, zeros before its first decision; None if it keeps no memory."""
        size = ability(self.ctx.models.get(self.role), "memory")
        return None if size is None else self.memories.get(self.role, np.zeros(size, np.float32))

    def _pay(self, role: str, reward: Mapping[str, Any]) -> None:
        """Tell who remembers, and wants to know, what was paid for its decision, by the weights of the run."""
        rewarded = ability(self.ctx.models.get(role), "rewarded")
        if rewarded is not None and role in self.memories:
            weights = {name: self.ctx.at(weight) for name, weight in self.ctx.weights.items()}
            paid = sum(weight * float(np.sum(reward.get(name, 0.0))) for name, weight in weights.items())
            self.memories[role] = rewarded(self.memories[role], paid)

    def _add_reported(self, step: Step) -> Step:
        """Returns the step with the environment's facts, one value per position. If another action was executed, it
        replaces the decision, with unknown log-probability (NaN) and without the trace's own columns."""
        self._require(explain_facts(facts := ability(self.env, "facts")), "facts")
        found = dict(facts)
        if not found:
            return step
        executed, k = found.pop(EXECUTED, None), len(step.mask)
        told = {n: np.broadcast_to(x, (k, *np.shape(x))) if np.ndim(x) else float(x) for n, x in found.items()}
        if executed is None:
            return copy_with(step, info={**step.info, **told})
        taken = torch.as_tensor(np.asarray(executed))[None]
        taken = taken.float() if taken.is_floating_point() else taken.long()
        columns = decisions(role_model(self.ctx.models, step.role), taken)
        decided = {n: x[0].numpy() for n, x in columns.items()}
        unknown = np.full(k, np.nan, np.float32)
        kept = {MEMORY: step.info[MEMORY]} if MEMORY in step.info else {}
        return copy_with(step, action=decided.pop("action"), logp=unknown, info={**decided, **told, **kept})

    def _keep(self, context: Payload, trace: Trace, *, decided: bool = True, role: str = "") -> None:
        fields: dict[str, Any] = {"parent": len(self.steps) - 1 if self.steps else None, "role": role or self.role}
        info = trace.info if self.recalled is None else {**trace.info, MEMORY: self.recalled[None]}
        step = Step.of(context, trace.action, trace.logp, trace.version, info=info, **fields)
        self.steps.append(step if decided else copy_with(step, mask=np.zeros_like(step.mask)))
        self.decided += decided

    def _to_environment(self, trace: Trace) -> Any:
        """Returns the part of a decision that is passed to the environment."""
        if (takes := ability(self.env, "takes")) is not None:
            return takes(trace)
        return trace.info.get("text", trace.action) if trace.taken is None else trace.taken

    def _see(self, action: Payload, observation: Any) -> str:
        """Moves the context past an action and the reply to it; returns the reply as text, empty if there is none."""
        if isinstance(observation, Whole) or not is_tokens(self.context):
            self._restart(observation)
            return self._words(observation.context, self.context) if isinstance(observation, Whole) else ""
        ids: Any = action
        if observation is None or (isinstance(observation, str) and not observation):
            seen: Any = np.zeros(0, np.int32)
        else:
            last = int(ids[-1]) if len(ids) else -1
            seen = self.ctx.encode_turn(observation, self.prompt, self.role, last)
        self.turns.append((ids, seen))
        self.context = np.concatenate([self.context, ids, seen])
        return self._words(observation, seen) if len(seen) else ""

    def _restart(self, observation: Any) -> None:
        whole = observation.context if isinstance(observation, Whole) else observation
        self.prompt, self.context = whole, self.ctx.encode(whole, self.role)
        self.start = self.context
        self.turns = []

    def _reads_text(self) -> bool:
        """Whether the acting role reads text; for an unknown role, whether the task is text."""
        model = self.ctx.models.get(self.role)
        return is_text(model) if model is not None else self.ctx.task.spaces() is None

    def _require(self, wrong: str, name: str) -> None:
        if wrong:
            raise ContractError(f"{type(self.env).__name__}.{name} {wrong} (problem {self.request.problem.id!r})")

    def _words(self, observation: Any, seen: Payload) -> str:
        if isinstance(observation, str):
            return observation
        return self.ctx.text(seen, self.role) if is_tokens(seen) else ""

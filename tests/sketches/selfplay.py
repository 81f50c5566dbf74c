"""Search Self-play: Pushing the Frontier of Agent Capability without Supervision (2025), catalogue 104.

One policy plays two roles: `proposer` asks a question whose answer is given, `solver` answers it. A question counts if
it is well formed and can be answered from the proposer's documents among noise; the harder, the better it pays. In a
recipe, with `same_as = "policy"` for both roles:

    buffer   : fresh(stream = "solver"): a rejected question leaves it short, and the curriculum refills from its pool
    collect  : the streams `solver` and `proposer`, each only its role's rows; the solver's advantage over its group,
               the proposer's over the batch, in a column of its own
    solver   : clip(high = 0.285) + 0.01 x divergence, stream `solver`
    proposer : clip of `present`, stream `proposer`

Left out: tools; `proposer` and `solver` may be any rollouts that play these roles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from shuhari.data import Problem, Request, Trajectory
from shuhari.events import Collected, Event
from shuhari.ports import Ctx, Curriculum, Rollout, Task
from shuhari.rollouts.single import Single


class Searchable(Task, Protocol):
    """A task over documents."""

    def derive(self, problem: Problem, text: str) -> Problem | None: ...  # the question in a proposal, if there is one
    def documents(self, steps: Sequence[Any]) -> list[str]: ...  # what the proposer has found
    def noise(self, n: int, draw: Callable[[int], int]) -> list[str]: ...
    def reading(self, question: Problem, documents: Sequence[str]) -> str: ...  # a prompt that needs no search


@dataclass
class SelfPlay:
    """A proposal, and the request's n answers to it where it stands: one group, statistics apart by role. A `direct`
    request is a question already. The proposer earns 1 - accuracy (`middle`: 4 acc (1 - acc))."""

    proposer: Rollout = field(default_factory=lambda: Single("proposer"))
    solver: Rollout = field(default_factory=lambda: Single("solver"))
    reader: str = "solver"
    noise: int = 4
    middle: bool = False
    accepts: Mapping[str, Any] = field(init=False, default_factory=lambda: {"direct": False})

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        request = replace(request, settings={k: v for k, v in request.settings.items() if k != "direct"})
        if request.problem.info.get("question"):
            return await self.solver.group(request, ctx)
        [p] = await self.proposer.group(replace(request, n=1), ctx)
        task: Searchable = ctx.task  # type: ignore[assignment]
        question = task.derive(request.problem, "".join(str(s.info["text"]) for s in p.steps))
        if question is None or not await self.answerable(question, p, request, ctx):
            return [scored(p, 0.0)]
        answers = await ctx.grade(await self.solver.group(replace(request, problem=question), ctx))
        return [scored(p, self.pay([a.steps[-1].reward["score"] for a in answers]), question=question), *answers]

    async def answerable(self, question: Problem, p: Trajectory, request: Request, ctx: Ctx) -> bool:
        task: Searchable = ctx.task  # type: ignore[assignment]
        rng = ctx.rng("noise", request.key)
        noise = task.noise(self.noise, lambda n: int(torch.randint(n, (), generator=rng)))
        prompt = ctx.encode(task.reading(question, [*task.documents(p.steps), *noise]), self.reader)
        [answer] = await ctx.engine.sample(
            self.reader, prompt, replace(request.sampling, greedy=True), key=(request.key, "reader")
        )
        return str(answer.info["text"]) == question.answer

    def pay(self, solved: Sequence[float]) -> float:
        rate = sum(solved) / len(solved)
        return 4 * rate * (1 - rate) if self.middle else 1 - rate


def scored(p: Trajectory, score: float, **info: Any) -> Trajectory:
    """A proposal that has been paid for: the task is not asked for a grade of it."""
    last = replace(p.steps[-1], info={**p.steps[-1].info, **info})
    return replace(p, steps=(*p.steps[:-1], last)).graded([{"score": score}], by="")


@dataclass
class Proposals:
    """Answers to ask about, from `own`; what a step still lacks after its first round comes from the pool of questions
    that stood, which is emptied every `clear` steps."""

    own: Curriculum
    clear: int = 10
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"step": -1, "pool": []})

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        pool, first = self.state["pool"], ctx.step != self.state["step"]
        if first and ctx.step % self.clear == 0:
            pool.clear()
        self.state["step"] = ctx.step
        if first or not pool:
            return await self.own.select(n, ctx)
        order = torch.randint(len(pool), (n,), generator=ctx.rng("pool", len(pool)))
        return [Request(pool[i], settings={"direct": True}) for i in order.tolist()]

    def observe(self, event: Event) -> None:
        if isinstance(event, Collected):
            self.state["pool"] += [s.info["question"] for s in event.batch.steps if "question" in s.info]

"""Several judgements of the same candidates, in shuffled orders, as one: the sum of their scores.

Source: Liu et al. 2025, "Inference-Time Scaling for Generalist Reward Modeling", section 4. Left out: a limit on the
tokens of all judgements together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from shuhari.bounds import Count, Length, check
from shuhari.data import EMPTY, ContractError, Problem, Request, Status, Step, Trajectory, constant, copy_with
from shuhari.kernel.registry import register
from shuhari.ports import Ctx
from shuhari.rewards.pointwise import CANDIDATES, count_candidates, read_scores


@register("rollout", "vote_scores")
@dataclass
class VoteScores:
    """Samples `votes` judgements for each answer, and adds up their scores, for evaluation.

    Each judgement sees the candidates in an order of its own, and its scores are put back into the problem's order.
    With `meta`, only the `keep` judgements count to which that role gives the largest values. The answer is the list of
    sums, such as `[16,23]`, a forced step behind the judgements, all of which are charged; `[]` if none had scores.
    Raises ContractError for a problem whose prompt does not have its `candidates` joined by `separator`.
    """

    votes: Length = 8
    """Number of judgements of each answer."""
    shuffle: bool = True
    """Whether each judgement sees the candidates in an order that is drawn."""
    separator: str = ","
    """Text between two candidates in the prompt."""
    meta: str = ""
    """Role of an outcome reward model of judgements, with a value head; "" counts all judgements."""
    keep: Count = 0
    """Number of judgements that count with `meta`; 0 is half of them."""
    role: str = "policy"
    """Role of the judge, a name under `[models]`."""
    accepts: Mapping[str, Any] = field(init=False, default_factory=lambda: EMPTY)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)
        if self.keep > self.votes:
            raise ValueError(f"vote_scores: keep is {self.keep}: expected at most votes, which is {self.votes}")

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role, self.meta) if self.meta else (self.role,)

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        return list(await asyncio.gather(*(self._vote(request, i, ctx) for i in range(request.n))))

    async def _vote(self, request: Request, i: int, ctx: Ctx) -> Trajectory:
        n = count_candidates(request.problem)
        orders = [self._draw(request, n, i, j, ctx) for j in range(self.votes)]
        asked = [reorder(request.problem, order, self.separator) for order in orders]
        contexts: list[Any] = [ctx.encode(problem.prompt, self.role) for problem in asked]
        calls = [
            ctx.engine.sample(self.role, context, request.sampling, 1, key=(request.key, self.role, i, j))
            for j, context in enumerate(contexts)
        ]
        traces = [trace for [trace] in await asyncio.gather(*calls)]
        texts = [ctx.text(trace.action, self.role) for trace in traces]
        scores = [put_back(read_scores(text, n), order) for text, order in zip(texts, orders, strict=True)]
        counted = await self._choose(asked, texts, scores, ctx)
        steps = [
            Step.of(context, t.action, t.logp, t.version, parent=j - 1 if j else None, role=self.role, info=t.info)
            for j, (context, t) in enumerate(zip(contexts, traces, strict=True))
        ]
        said = f"[{','.join(map(str, add_up([scores[j] for j in counted])))}]"
        action: Any = ctx.encode_text(said, self.role)
        forced = constant(len(action), False, bool), constant(len(action), -1, np.int64)
        context = ctx.encode(request.problem.prompt, self.role)
        steps.append(Step(context, action, *forced, parent=len(steps) - 1, role=self.role, info={"text": said}))
        return Trajectory(request, tuple(steps), Status.FINISHED)

    def _draw(self, request: Request, n: int, i: int, j: int, ctx: Ctx) -> list[int]:
        if not self.shuffle:
            return list(range(n))
        order: list[int] = torch.randperm(n, generator=ctx.rng("vote", request.key, i, j)).tolist()
        return order

    async def _choose(
        self, asked: Sequence[Problem], texts: Sequence[str], scores: Sequence[Sequence[int] | None], ctx: Ctx
    ) -> list[int]:
        """Returns the judgements that count: those with scores, or of these the ones with the largest values."""
        good = [j for j, found in enumerate(scores) if found is not None]
        if not self.meta:
            return good
        calls = []
        for j in good:
            seen, said = ctx.encode(asked[j].prompt, self.meta), ctx.encode_answer(asked[j].prompt, texts[j], self.meta)
            calls.append(ctx.engine.score(self.meta, seen, said, ["value"]))
        values = [float(found["value"][-1]) for found in await asyncio.gather(*calls)]
        best = sorted(range(len(good)), key=lambda k: -values[k])[: self.keep or max(1, self.votes // 2)]
        return [good[k] for k in best]


def reorder(problem: Problem, order: Sequence[int], separator: str) -> Problem:
    """Returns a problem whose prompt has the candidates in an order: first the one with the number order[0], from 0."""
    if list(order) == sorted(order):
        return problem
    given = problem.info[CANDIDATES]
    texts = [str(text) for text in given] if isinstance(given, list | tuple) else []
    joined = separator.join(texts)
    if not texts or not isinstance(problem.prompt, str) or problem.prompt.count(joined) != 1:
        what = f"problem {problem.id!r} of {problem.task} does not have its candidates, joined by {separator!r}"
        raise ContractError(f"{what}, once in its prompt: expected that, or vote_scores with shuffle = false")
    return copy_with(problem, prompt=problem.prompt.replace(joined, separator.join(texts[k] for k in order)))


def put_back(scores: Sequence[int] | None, order: Sequence[int]) -> tuple[int, ...] | None:
    """Returns scores, given in an order, in the problem's own."""
    if scores is None:
        return None
    where = {k: place for place, k in enumerate(order)}
    return tuple(scores[where[k]] for k in range(len(order)))


def add_up(scores: Sequence[Sequence[int] | None]) -> list[int]:
    """Returns the sum of the scores of each candidate, over the judgements that have some."""
    return [
        sum(column)
        for column in zip(
            *(x for x in scores if x is not None),
            strict=True,
        )
    ]

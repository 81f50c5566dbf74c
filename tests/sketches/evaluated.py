"""What papers of evaluation bring, as users would write it: an answer by vote, and how far two roles agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shuhari.data import Request, Trajectory, copy_with
from shuhari.ports import Ctx
from shuhari.rollouts.single import Single


@dataclass
class Vote:
    """Each answer is the most frequent of `of` samples (self-consistency, Wang et al. 2022)."""

    of: int = 4
    accepts: Mapping[str, Any] = field(init=False, default_factory=dict)

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        drawn = await Single().group(copy_with(request, n=request.n * self.of), ctx)
        ballots = [drawn[i * self.of : (i + 1) * self.of] for i in range(request.n)]
        return [copy_with(elected(ballot), request=request) for ballot in ballots]


def elected(ballot: list[Trajectory]) -> Trajectory:
    """The first of those that say what most say."""
    texts = [t.steps[-1].info["text"] for t in ballot]
    return ballot[texts.index(Counter(texts).most_common(1)[0][0])]


def short(prompts: list[str], completions: list[str]) -> list[float]:
    """A reward that every sample has some of."""
    return [1.0 / (1 + len(said)) for said in completions]


@dataclass
class Agreement:
    """The share of greedy answers of `role` that `other` gives too, on the first `n` held-out problems."""

    other: str
    role: str = "policy"
    n: int = 8

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role, self.other)

    def __call__(self, ctx: Ctx) -> Mapping[str, float]:
        source, mode = ctx.task.problems("test"), copy_with(ctx.sampling, greedy=True)
        same = []
        for problem in (source[i] for i in range(self.n)):
            prompt = ctx.encode(problem.prompt)
            said = [ctx.wait(ctx.engine.sample(r, prompt, mode, 1, key=(problem.id, r)))[0] for r in self.roles]
            same.append(ctx.text(said[0].action) == ctx.text(said[1].action))
        return {"same": sum(same) / len(same)}

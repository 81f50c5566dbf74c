"""Answers by a vote of several samples, each with one vote or with a reward's: for evaluation.

Sources: self-consistency (Wang et al. 2022, arXiv 2203.11171); votes weighed by a verifier (Li et al. 2022, "Making
Large Language Models Better Reasoners with Step-Aware Verifier", arXiv 2206.02336). Left out: answers that are equal in
meaning and not as texts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

from shuhari.bounds import Length, check
from shuhari.data import ContractError, Request, Trajectory, copy_with, sum_reward
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Rollout
from shuhari.ports.declares import together
from shuhari.rollouts.single import Single
from shuhari.tasks.source import answer_text


@register("rollout", "vote_answers")
@dataclass
class VoteAnswers:
    """Samples `votes` answers for each one, and gives the one with most votes.

    Answers are equal if their texts behind the last `after`, up to the next `until`, are the same except for spaces.
    Each has one vote (a majority), or with `weight` as many as that reward of it; an ungraded one has none. Of equal
    answers the first is given, or that with the largest reward; of equal sums the one that came first. All samples are
    charged, and what is given is a sample of `of`. Column `share`: the share of the votes that it had.
    Raises ContractError for a reward below 0, and for answers of several paths.
    """

    votes: Length = 8
    """Number of answers that are sampled for each one that is given."""
    weight: str = ""
    """Name of the reward, 0 or more, that is the number of votes of an answer, such as a reward model's with `scale =
    "probability"`; "" gives each one vote."""
    after: str = ""
    """Text behind whose last occurrence the compared part begins, such as `####`; "" or none compares all."""
    until: str = ""
    """Text at which the compared part ends, such as `}` of a box; "" is the end of the answer."""
    of: Rollout = field(default_factory=Single)
    """Rollout that samples the answers."""

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together(("share",), self.of)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"reward/{self.weight}",) if self.weight else ()

    def __post_init__(self) -> None:
        check(self)

    @property
    def accepts(self) -> Mapping[str, Any]:
        return self.of.accepts

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]:
        return list(await asyncio.gather(*(self._ask(request, i, ctx) for i in range(request.n))))

    async def _ask(self, request: Request, i: int, ctx: Ctx) -> Trajectory:
        asked = replace(request, n=self.votes, key=f"{request.key}/vote{i}")
        answers = await self.of.group(asked, ctx)
        if self.weight:
            answers = await ctx.grade(answers, until=self.weight)
        weights = [self._weigh(t) for t in answers]
        said = [find_part(answer_text(t.steps), self.after, self.until) for t in answers]
        chosen, share = count_votes(said, weights)
        t = answers[chosen]
        return copy_with(t, request=request, info={**t.info, "share": share})

    def _weigh(self, t: Trajectory) -> float:
        if len(t.paths()) != 1:
            raise ContractError(f"vote_answers: an answer of {len(t.paths())} paths: expected one")
        if not self.weight:
            return 1.0
        number = sum_reward(t.steps, self.weight)
        if number < 0:
            expected = "expected 0 or more, as a reward model gives with scale = 'probability'"
            raise ContractError(f"vote_answers: an answer has {number:g} by reward {self.weight!r}: {expected}")
        return 0.0 if isnan(number) else number


def find_part(text: str, after: str = "", until: str = "") -> str:
    """Returns the part of an answer that is compared, with single spaces."""
    part = text.rpartition(after)[2] if after else text
    return " ".join((part.partition(until)[0] if until else part).split())


def count_votes(said: Sequence[str], weights: Sequence[float]) -> tuple[int, float]:
    """Returns the number of the answer that is given, from 0, and the share of the votes for it and its equals (0 if
    there is no vote)."""
    sums: dict[str, float] = {}
    for text, weight in zip(said, weights, strict=True):
        sums[text] = sums.get(text, 0.0) + weight
    best = max(sums, key=sums.__getitem__)  # of equal ones the first
    places = [i for i, text in enumerate(said) if text == best]
    total = sum(weights)
    return max(places, key=weights.__getitem__), sums[best] / total if total else 0.0

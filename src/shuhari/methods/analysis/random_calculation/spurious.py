"""Rewards that say little or nothing about whether an answer is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Literal

import torch

from shuhari.bounds import Share, check
from shuhari.data import Trajectory, sum_reward
from shuhari.kernel.registry import register
from shuhari.ports import Ctx
from shuhari.tasks.expressions import ExpressionError, Limits, evaluate
from shuhari.tasks.source import answer_text


@register("reward", "spurious")
@dataclass
class Spurious:
    """A reward that is random, inverted, or for the form of an answer alone (Wu et al. 2025, arXiv 2507.10532).

    `random` gives 1 with the probability `chance`, whatever the answer; `inverted` gives 1 - the reward `of`; `form`
    gives 1 if the text after the last `=` is a number or an expression of numbers, right or wrong. Answers that `of`
    leaves ungraded are ungraded here. Name it alone in `[reward.weights]`.
    """

    kind: Literal["random", "inverted", "form"] = "random"
    """What the reward depends on: `random`, `inverted` or `form`."""
    name: str = "spurious"
    """Name of the grade, so that its column is `reward/<name>`."""
    of: str = "score"
    """Name of the reward that says whether an answer is right."""
    chance: Share = 0.5
    """Probability of a random reward of 1."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"reward/{self.of}",)

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, float] | None]:
        """Returns one grade per leaf; a random one depends on the run's stream and the place in the group."""
        leaves = [
            [t.steps[i] for i in path]
            for t in group
            for path in t.paths()
        ]
        draws = torch.rand(len(leaves), generator=ctx.rng(self.name, group[0].request.key)).tolist()
        out: list[Mapping[str, float] | None] = []
        for steps, draw in zip(leaves, draws, strict=True):
            grade = sum_reward(steps, self.of)
            if isnan(grade):
                out.append(None)
            elif self.kind == "random":
                out.append({self.name: float(draw < self.chance)})
            else:
                out.append({self.name: 1 - grade if self.kind == "inverted" else float(is_formed(answer_text(steps)))})
        return out


def is_formed(text: str) -> bool:
    """Whether the text after the last `=` is a number or an expression of numbers."""
    try:
        evaluate(text.rpartition("=")[2], Limits(length=32, depth=4, digits=12))
    except ExpressionError:
        return False
    return True

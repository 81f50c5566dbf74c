"""What an agent sees of its own past: the last turns, a summary that it wrote itself, the end of a long answer.

Keep-last-K: MiroThinker (catalogue 5), WebAgent-R1 (45). A summary that is asked of the policy and trained like its
other turns: SUPO (95). Carry-over: Delethink (57), where one long answer is played in chunks. In a recipe:

    rollout : episode(context = keep_last(k)), or episode(environments = chunks, context = carry_over(m))

A turn in a context of its own is a row, linked to the one before; credit and ratios are the core's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from shuhari.data import Payload, Problem, Request, Status
from shuhari.needs import Trace
from shuhari.ports import Ctx, Environment, Play


@dataclass
class KeepLast:
    """The question, and the last k turns with what was answered to them."""

    k: int = 1

    async def __call__(self, play: Play) -> Payload:
        return joined(play.start, *chain(*play.turns[max(0, len(play.turns) - self.k) :]))


@dataclass
class Summary:
    """All of it, until that is more than `limit` tokens: then the policy is asked for a summary, which with the
    question is all that it goes on with."""

    limit: int
    prompt: str

    async def __call__(self, play: Play) -> Payload:
        if len(play.context) <= self.limit:  # type: ignore[arg-type]
            return play.context
        said = await play.ask(joined(play.context, play.ctx.encode(self.prompt, play.role)))
        return joined(play.start, said.action)


@dataclass
class CarryOver:
    """The question, and the last `m` tokens of what was said."""

    m: int

    async def __call__(self, play: Play) -> Payload:
        said = joined(np.zeros(0, np.int32), *(action for action, _ in play.turns))
        return joined(play.start, said[-self.m :])  # type: ignore[index]


@dataclass
class Chunks:
    """Each problem's answer in calls of `max_new` tokens, until one ends it."""

    def environment(self, request: Request, ctx: Ctx) -> Environment | None:
        return Answer()


@dataclass
class Answer:
    """A world that has nothing to say, and ends with the end token."""

    problem: Problem | None = field(init=False, default=None)

    def reset(self, problem: Problem) -> Payload:
        return problem.prompt

    def takes(self, trace: Trace) -> Trace:
        return trace

    def step(self, action: Trace) -> tuple[Payload, Mapping[str, float], Status | None]:
        return "", {}, Status.FINISHED if action.info.get("ended") else None

    def snapshot(self) -> Payload:
        return None

    def restore(self, snapshot: Payload) -> Payload:
        raise NotImplementedError


def joined(*pieces: Any) -> Payload:
    return np.concatenate(pieces)

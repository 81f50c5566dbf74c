"""Demonstrations: the solutions of a task's problems as supervised rows.

Text only; recorded episodes of controllers are not read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from shuhari.batch import Batch
from shuhari.buffers.fresh import streamed
from shuhari.data import Array, Payload, Problem, Request, Step, Trajectory, code, is_tokens
from shuhari.pack import pack
from shuhari.ports import Ctx, Source
from shuhari.registry import register
from shuhari.rollouts.episode import replayed


@register("buffer", "demos")
@dataclass
class Demos:
    """Each draw yields `draws` batches of `size` rows on `stream`: prompt, then solution and end token, all decided.

    It walks the problems of `split` from index `offset` on, so that an endless task gives other problems than the
    curriculum takes (which counts from 0). A finite split is walked round and round, each pass in an order of its own
    (`shuffle`). A solution is text, a tuple of texts (joined as they are), or token ids; where there is none, the
    answer is shown. Where the task gives the problem an environment, a solution is its turns: they are played there,
    each with an end token, and what the environment says in between is no decision. `logp` is unknown (NaN), so that
    ratios refuse these rows. Charged: `decisions`, those of the rows, as of samples. Raises ValueError for a problem
    without either, and for turns that the environment does not take.
    """

    size: int = 64
    draws: int = 1
    split: str = "train"
    offset: int = 1_000_000
    shuffle: bool = True
    role: str = "policy"
    stream: str = "ce"
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"at": 0})

    def short(self) -> int:
        return 0

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        source = ctx.task.problems(self.split)
        name = code("demos", self.role, self.split, self.offset, self.stream) >> 8  # ids apart from those of the run
        for _ in range(self.draws):
            at = self.state["at"]
            self.state["at"] = at + self.size
            problems = walk(source, self.split, at, self.size, self.offset, self.shuffle)
            rows = [shown(p, _solution(p), ctx, self.role) for p in problems]
            batch = pack(rows, start=name + at)
            ctx.charge("decisions", int(batch["mask"].sum()))
            yield streamed(batch, self.stream)


def walk(source: Source, split: str, at: int, count: int, offset: int, shuffle: bool) -> list[Problem]:
    """The `count` problems from place `at` of a walk that begins at index `offset`; a finite source is walked round and
    round, each pass in an order of its own (`shuffle`). ValueError where there are none."""
    n = source.size()
    if n is None:
        return [source[offset + i] for i in range(at, at + count)]
    if n < 1:
        raise ValueError(f"the split {split!r} has no problems to demonstrate")
    places = [divmod(offset + i, n) for i in range(at, at + count)]
    return [source[int(_order(turn, n)[place]) if shuffle else place] for turn, place in places]


def shown(problem: Problem, solution: Any, ctx: Ctx, role: str) -> Trajectory:
    """The prompt, then `solution` and the end token: one row, all decided by nobody we know. In an environment the
    turns of the solution are played. ValueError where it is None, TypeError where it is not text."""
    whose = f"problem {problem.id!r} of {problem.task}"
    if solution is None:
        raise ValueError(f"{whose} has no solution and no answer: nothing to show")
    if (env := ctx.task.environment(problem)) is not None:
        turns = solution if isinstance(solution, tuple) else (solution,)
        if not turns:
            raise ValueError(f"{whose} has a solution without a turn: nothing to show")
        return ctx.wait(replayed(problem, env, [_ended(turn, whose, ctx, role) for turn in turns], role, ctx))
    action = _ended("".join(solution) if isinstance(solution, tuple) else solution, whose, ctx, role)
    context = ctx.encode(problem.prompt, role)
    if not is_tokens(context):
        raise TypeError(f"{whose} is not text: demonstrations are token ids")
    return Trajectory(Request(problem), (Step.of(context, action, version=-1, role=role),))


def _solution(problem: Problem) -> Any:
    """The solution, else the answer, which is text where it is a number."""
    if problem.solution is not None:
        return problem.solution
    number = isinstance(problem.answer, int | float) and not isinstance(problem.answer, bool)
    return str(problem.answer) if number else problem.answer


def _ended(said: Payload, whose: str, ctx: Ctx, role: str) -> Array:
    """Text or token ids as token ids with the end token last."""
    ids: Any = said if is_tokens(said) else ctx.encode(said, role)
    if not is_tokens(ids):
        raise TypeError(f"{whose} is not text: demonstrations are token ids")
    end = ctx.models[role].end  # type: ignore[attr-defined]
    return ids if len(ids) and ids[-1] == end else np.append(ids, np.int32(end))


@lru_cache(maxsize=2)
def _order(turn: int, n: int) -> Array:
    """[n] the order of pass `turn`: named, not drawn, so that nothing is to be remembered."""
    return np.random.default_rng(code("demos", turn, n)).permutation(n)

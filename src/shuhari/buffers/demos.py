"""Demonstrations: the solutions of a task's problems as supervised rows.

Text only; recorded episodes of environments are not read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from shuhari.batch import Batch
from shuhari.buffers.fresh import streamed
from shuhari.data import Array, Problem, Request, Step, Trajectory, code, is_tokens
from shuhari.pack import pack
from shuhari.ports import Ctx, Source
from shuhari.registry import register


@register("buffer", "demos")
@dataclass
class Demos:
    """Each draw yields `draws` batches of `size` rows on `stream`: prompt, then solution and end token, all decided.

    It walks the problems of `split` from index `offset` on, so that an endless task gives other problems than the
    curriculum takes (which counts from 0). A finite split is walked round and round, each pass in an order of its own
    (`shuffle`). A solution is text, a tuple of texts (joined as they are), or token ids; where there is none, the
    answer is shown. `logp` is unknown (NaN), so that ratios refuse these rows. Raises ValueError for a problem without
    either.
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
            rows = [self._row(source[self._index(source, i)], ctx) for i in range(at, at + self.size)]
            yield streamed(pack(rows, start=name + at), self.stream)

    def _index(self, source: Source, i: int) -> int:
        n = source.size()
        if n is None:
            return self.offset + i
        if n < 1:
            raise ValueError(f"the split {self.split!r} has no problems to demonstrate")
        turn, place = divmod(self.offset + i, n)
        return int(_order(turn, n)[place]) if self.shuffle else place

    def _row(self, problem: Problem, ctx: Ctx) -> Trajectory:
        solution: Any = problem.answer if problem.solution is None else problem.solution
        if solution is None:
            raise ValueError(f"problem {problem.id!r} of {problem.task} has no solution and no answer: nothing to show")
        if isinstance(solution, tuple):
            solution = "".join(solution)
        context = ctx.encode(problem.prompt, self.role)
        action: Any = solution if is_tokens(solution) else ctx.encode(solution, self.role)
        if not (is_tokens(context) and is_tokens(action)):
            raise TypeError(f"problem {problem.id!r} of {problem.task} is not text: demonstrations are token ids")
        end = ctx.models[self.role].end  # type: ignore[attr-defined]
        if not len(action) or action[-1] != end:
            action = np.append(action, np.int32(end))
        return Trajectory(Request(problem), (Step.of(context, action, version=-1, role=self.role),))


@lru_cache(maxsize=2)
def _order(turn: int, n: int) -> Array:
    """[n] the order of pass `turn`: named, not drawn, so that nothing is to be remembered."""
    return np.random.default_rng(code("demos", turn, n)).permutation(n)

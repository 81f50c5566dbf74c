"""Demonstrations: the solutions of a task's problems as supervised rows.

Text only; recorded episodes of controllers are not read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shuhari.batch import Batch
from shuhari.bounds import Count, Size, check
from shuhari.buffers.fresh import put_on_stream
from shuhari.data import EMPTY, Payload, Problem
from shuhari.kernel.pack import pack
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Source, Task, Window
from shuhari.rollouts.demonstrations import (
    check_solutions,
    draw_problems,
    find_solution,
    restrict_to_split,
    show_solution,
)
from shuhari.tasks.source import has_values


@register("buffer", "demos")
@dataclass
class Demos:
    """Each draw yields `draws` batches of `size` rows on `stream`: prompt, then solution and end token, all decided.

    It walks the problems of `split` from index `offset` on, so that an endless task gives other problems than the
    curriculum takes (which counts from 0). A finite split is walked round and round, each pass in an order of its own
    (`shuffle`). `where`: of those problems alone whose `info` has these values (of a list, any of them). A solution is
    text, a tuple of texts (joined as they are), or token ids; where there is none, `imitate = "answer"` shows the
    answer. Where the task gives the problem an environment, a solution is its turns: they are played there, each with
    an end token, and what the environment says in between is no decision; `context` is the window through which they
    are seen, as of the rollout `episode`. `logp` is unknown (NaN), so that ratios refuse these rows. Numbers of a
    problem's `info` are columns `info/<name>` [B], NaN where it has none. Charged:
    `decisions`, those of the rows, as of samples. Raises ValueError for a problem without, and for turns that the
    environment does not take.
    """

    samples = False
    size: Size = 64
    draws: Count = 1
    split: str = "train"
    offset: Count = 1_000_000
    shuffle: bool = True
    role: str = "policy"
    stream: str = "ce"
    context: Window | None = None
    imitate: Literal["solution", "answer"] = "solution"
    where: Mapping[str, Any] = EMPTY
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"at": 0})
    chosen: dict[str, Source] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    @property
    def stamps(self) -> tuple[str, ...]:
        return f"weight/{self.stream}", "info/*"

    def wanted(self) -> int:
        return 0

    def imitates(self, task: Task) -> str:
        """What is imitated of a task's problems, in words. ValueError where one lacks it."""
        return check_solutions(self, self.imitate, task)

    def shows(self, problem: Problem) -> tuple[Payload, ...]:
        """What it puts behind the prompt of a problem."""
        if not has_values(problem.info, self.where) or (problem.solution is None and self.imitate != "answer"):
            return ()
        shown = find_solution(problem, self.imitate)
        return () if shown is None else (shown,)

    def held_out(self, split: str, n: int, ctx: Ctx) -> Iterator[Batch]:
        """Up to n problems of `split`, in one batch."""
        return restrict_to_split(self, split, n, ctx).draw(ctx)

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        for problems, at, base in draw_problems(self, "demos", ctx):
            start = base + self.state.get("rows", at)
            shown = [(p, find_solution(p, self.imitate)) for p in problems]
            batch = pack([show_solution(p, what, ctx, self.role, self.context) for p, what in shown], start=start)
            self.state["rows"] = start - base + len(batch)
            ctx.charge("decisions", int(batch["mask"].sum()))
            yield put_on_stream(batch, self.stream)

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
    """Demonstrations for supervised fine-tuning: the solutions of a task's problems, as rows of prompt, solution and
    end token.

    Each draw yields `draws` batches of `size` rows on `stream`. A solution is text, a tuple of texts (concatenated), or
    token ids. If the problem has an environment, a solution is its turns: they are played there, each with an end
    token, and the environment's replies are not decisions. `logp` is unknown (NaN), so that ratios refuse these rows.
    Numbers of a problem's `info` are columns `info/<name>` [B], NaN if it has none. Charges `decisions`, as for
    samples. Raises ValueError for a problem without a solution, and for turns that the environment rejects.
    """

    samples = False
    size: Size = 64
    """Number of demonstrations in a batch, one row each."""
    draws: Count = 1
    """Number of batches drawn in each step."""
    split: str = "train"
    """Split of the task whose problems are used."""
    offset: Count = 1_000_000
    """Index of the first problem; large, so that an endless task gives other problems than RL, which counts from 0."""
    shuffle: bool = True
    """Whether each pass through a finite split has a random order of its own."""
    role: str = "policy"
    """Role of the model that learns from them, whose tokenizer encodes them."""
    stream: str = "ce"
    """Name of the weights `weight/<stream>` that the rows carry; the imitating loss has the same stream."""
    context: Window | None = None
    """How much of a multi-turn episode the model sees at each turn, as in the rollout `episode`; None shows all of
    it."""
    imitate: Literal["solution", "answer"] = "solution"
    """Text to imitate: "solution" needs one in every problem; "answer" takes the problem's answer if it has no
    solution."""
    where: Mapping[str, Any] = EMPTY
    """Values that the `info` of a problem must have, by name (a list: any of these); empty takes every problem."""
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
        """Returns in words what is imitated of a task's problems. Raises ValueError if one lacks it."""
        return check_solutions(self, self.imitate, task)

    def shows(self, problem: Problem) -> tuple[Payload, ...]:
        """Returns the texts that follow the prompt of a problem."""
        if not has_values(problem.info, self.where) or (problem.solution is None and self.imitate != "answer"):
            return ()
        shown = find_solution(problem, self.imitate)
        return () if shown is None else (shown,)

    def held_out(self, split: str, n: int, ctx: Ctx) -> Iterator[Batch]:
        """Yields one batch of up to n problems of `split`."""
        return restrict_to_split(self, split, n, ctx).draw(ctx)

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        for problems, at, base in draw_problems(self, "demos", ctx):
            start = base + self.state.get("rows", at)
            shown = [(p, find_solution(p, self.imitate)) for p in problems]
            batch = pack([show_solution(p, what, ctx, self.role, self.context) for p, what in shown], start=start)
            self.state["rows"] = start - base + len(batch)
            ctx.charge("decisions", int(batch["mask"].sum()))
            yield put_on_stream(batch, self.stream)

"""Solutions of a fixed set of problems, picked at the start of a stage by how often the policy solves them.

Source of grading difficulty by samples of the previous policy: "RedStar: Does Scaling Long-CoT Data Unlock Better
Slow-Reasoning Systems?" (Xu et al. 2025, arXiv 2501.11284). Text only. Left out: solutions of a teacher.

Axes: `B` rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from shuhari.batch import Batch
from shuhari.bounds import Count, Share, Size, check
from shuhari.buffers.fresh import put_on_stream
from shuhari.curricula.target import count_successes, name_of
from shuhari.data import Payload, Problem, Request, code
from shuhari.events import Event, StageStarted
from shuhari.kernel.pack import pack
from shuhari.kernel.registry import register
from shuhari.ports import Ctx
from shuhari.rollouts.demonstrations import find_solution, show_solution, walk_problems
from shuhari.tasks.source import Listed


@register("buffer", "chosen_solutions")
@dataclass
class Picked:
    """Demonstrations of selected problems: solutions of those that the policy solves neither too seldom nor too often
    at the start of the stage.

    Each draw is `size` solutions on `stream`, as rows of the buffer `demos`: prompt, then solution and end token, with
    unknown log-probability. The picked problems repeat, each pass in a new order. At the first draw of a stage, before
    any update, the run's rollout answers each of the first `pool` problems `n` times, graded and charged as probes.
    Problems whose mean outcome lies in [`low`, `high`], without ungraded answers, are picked, in the order of the
    split. If none is picked, the first problem's solution is drawn with weight 0, so that the stream exists.

    Raises ValueError for an endless split with pool = 0, and for a problem without a solution. Charges `decisions`, of
    solutions.
    """

    samples = False
    asks = True
    size: Size = 64
    """Number of solutions in a batch, one row each."""
    split: str = "train"
    """Split of the task whose problems are considered."""
    pool: Count = 0
    """Number of first problems of the split that are considered; 0: all of them, which needs a finite split."""
    most: Count = 0
    """Largest number of picked problems, the first that fit; 0 is no limit."""
    graded: bool = True
    """Whether problems are picked by success rate; false samples nothing and takes the first ones."""
    n: Count = 0
    """Number of answers per problem, whose mean outcome is used; 0: as many as a group of the run has (`rollout.n`)."""
    low: Share = 0.0
    """Smallest mean outcome of a picked problem."""
    high: Share = 1.0
    """Largest mean outcome of a picked problem; below 1 it leaves out problems that are always solved."""
    reward: str = "reward"
    """Reward column that is the outcome of an answer; `reward` is the weighted sum that is trained."""
    role: str = "policy"
    """Role of the model that learns from them, whose tokenizer encodes them."""
    stream: str = "ce"
    """Name of the weights `weight/<stream>` that the rows carry; the imitating loss has the same stream."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"picked": None, "at": 0})

    @property
    def stamps(self) -> tuple[str, ...]:
        return f"weight/{self.stream}", "info/*"

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.reward,) if self.graded else ()

    def __post_init__(self) -> None:
        check(self)
        if self.low > self.high:
            raise ValueError(f"picked: low is {self.low} and high {self.high}: expected low <= high")

    def wanted(self) -> int:
        return 0

    def observe(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self.state |= {"picked": None, "at": 0}

    def shows(self, problem: Problem) -> tuple[Payload, ...]:
        """Returns the texts that follow the prompt of a problem."""
        return () if problem.solution is None else (problem.solution,)

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        if self.state["picked"] is None:
            self.state["picked"] = self._pick(ctx)
        source, at = ctx.task.problems(self.split), self.state["at"]
        picked = Listed([source[i] for i in self.state["picked"] or [0]])
        self.state["at"] = at + self.size
        problems = walk_problems(picked, self.split, at, self.size, 0, shuffle=True)
        shown = [show_solution(p, find_solution(p), ctx, self.role) for p in problems]
        batch = pack(shown, start=(code("picked", self.role, self.split, self.stream) >> 8) + at)
        batch = put_on_stream(batch, self.stream)
        if not self.state["picked"]:
            yield batch.put({f"weight/{self.stream}": torch.zeros(batch["mask"].shape)})
            return
        ctx.charge("decisions", int(batch["mask"].sum()))
        yield batch

    def _pick(self, ctx: Ctx) -> list[int]:
        """Returns the indices of the picked problems."""
        source = ctx.task.problems(self.split)
        size = source.size()
        if size is None and not self.pool:
            raise ValueError(f"picked: the split {self.split!r} has no end: set pool, how many problems to look at")
        indices = list(range(min(self.pool or size or 0, self.pool if size is None else size)))
        if self.graded:
            rates = self._rate([Request(source[i], self.n) for i in indices], ctx)
            indices = [i for i in indices if i in rates and self.low <= rates[i] <= self.high]
        return indices[: self.most or None]

    def _rate(self, requests: list[Request], ctx: Ctx) -> dict[int, float]:
        """Returns index of a request -> the mean outcome of its graded answers, without requests that have none."""
        rates = count_successes(ctx.wait(ctx.probe(requests, tag="probe")), self.reward)
        found = {i: rates.get(name_of(r.problem)) for i, r in enumerate(requests)}
        return {i: s.rate for i, s in found.items() if s is not None}

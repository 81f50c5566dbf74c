"""Trains on a few problems repeatedly, instead of a whole pool.

Source: "Reinforcement Learning for Reasoning in Large Language Models with One Training Example" (Wang et al. 2025,
arXiv 2504.20571). Difference: it takes the problems whose rate varied most over the epochs of an earlier run; here they
are those whose answers vary most before training, which needs no other run. Left out: its loss (KL, entropy).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

from shuhari.bounds import Count, Length, Size, check
from shuhari.curricula.others import look
from shuhari.curricula.target import count_successes, name_of
from shuhari.data import Request
from shuhari.events import Event, StageStarted
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Curriculum
from shuhari.ports.declares import together


@register("curriculum", "few_problems")
@dataclass
class Few:
    """Trains on one prompt, or a few, repeatedly (one-shot RLVR); they are chosen once, as those whose outcomes vary
    most.

    At a stage's first step it chooses, among `pool` problems of `candidates`, those with the largest variance p (1 -
    p), p the mean outcome over `n` answers of the current policy (charged as probes); ties go to the first. In a batch
    larger than k, problems repeat, each time as a separate group. If `candidates` have fewer than k distinct problems,
    those are all. Ungraded problems are chosen last. Raises ValueError for k above the pool, and for outcomes outside
    [0, 1].
    """

    candidates: Curriculum
    """Curriculum that the problems are chosen from."""
    k: Length = 1
    """Number of problems that are trained on, in turn."""
    pool: Size = 64
    """Number of problems to choose from, at least `k`."""
    n: Count = 8
    """Number of answers to each of them, by which they are chosen; 0 samples nothing and takes the first `k`."""
    reward: str = "reward"
    """Reward column, in [0, 1], that is the outcome of an answer; `reward` is the weighted sum that is trained."""
    looks: Length = 4
    """Largest number of requests to `candidates` until there are `pool` distinct problems."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"chosen": None, "at": 0})

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), self.candidates)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.reward,) if self.n else ()

    def __post_init__(self) -> None:
        check(self)
        if self.k > self.pool:
            raise ValueError(f"few: k is {self.k} and pool {self.pool}: expected at most as many as are looked at")

    def observe(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self.state |= {"chosen": None, "at": 0}

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        if self.state["chosen"] is None:
            self.state["chosen"] = await self._choose(ctx)
        chosen: list[Request] = self.state["chosen"]
        if not chosen:
            return []
        at = self.state["at"] % len(chosen)
        self.state["at"] = at + n
        return list(islice(cycle(chosen), at, at + n))

    async def _choose(self, ctx: Ctx) -> list[Request]:
        """Returns the k problems, in order of appearance."""
        found = dict[str, Request]()
        for i in range(self.looks):
            if len(found) == self.pool:
                break
            for request in await look(self.candidates, self.pool - len(found), i, ctx):
                found.setdefault(name_of(request.problem), request)
        names = list(found)
        if self.n:
            asked = [Request(r.problem, self.n) for r in found.values()]
            rates = count_successes(await ctx.probe(asked, tag="probe"), self.reward)
            spread = {name: s.rate * (1 - s.rate) for name, s in rates.items()}
            names.sort(key=lambda name: -spread.get(name, -1.0))  # stable: ties go to the first
        chosen = set(names[: self.k])
        return [request for name, request in found.items() if name in chosen]

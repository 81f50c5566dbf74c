"""Trains only on problems that greedy decoding does not solve: one greedy sample of each problem decides.

Source: "The Reasoning Boundary Paradox: How Reinforcement Learning Constrains Language Models" (SELF, arXiv 2510.02230)
and its code. There a batch shrinks to the failures among its problems, and a step without one is skipped; here problems
are tried until there are enough failures. Left out: the order of the problems (`inner` chooses).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import cycle, islice

from shuhari.bounds import Length, check
from shuhari.curricula.others import look
from shuhari.curricula.target import name_of
from shuhari.data import Info, Request
from shuhari.kernel.pack import find_usable
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Curriculum
from shuhari.ports.declares import together


@register("curriculum", "unsolved_problems")
@dataclass
class Unsolved:
    """Trains only on problems that greedy decoding does not solve: each is first sampled greedily once (SELF).

    Takes problems from `inner`, samples each greedily by the current policy (charged as probes), and keeps those whose
    outcome is below `solved`, until there are enough; it tries no problem twice. Too few failures are repeated in turn;
    if all were solved, the problems are those of `inner`. An ungraded answer counts as a failure. The report has
    `curriculum/solved`, the share of the problems tried since the last one that greedy decoding solves.
    """

    inner: Curriculum
    """Curriculum that the problems come from."""
    reward: str = "reward"
    """Reward column that is the outcome of a sample; `reward` is the weighted sum that is trained."""
    solved: float = 1.0
    """Smallest outcome of a right greedy sample; lower it if rewards are graded."""
    looks: Length = 4
    """Largest number of requests to `inner` until there are enough failures; each costs a greedy sample of every new
    problem."""
    state: dict[str, float] = field(init=False, default_factory=lambda: {"solved": 0.0, "tried": 0.0})

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), self.inner)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.reward,)

    def __post_init__(self) -> None:
        check(self)

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        asked, kept, solves = list[Request](), list[Request](), dict[str, bool]()
        for i in range(self.looks):
            if len(kept) == n:
                break
            new = await look(self.inner, n - len(kept), i, ctx)
            solves |= await self._try({name_of(r.problem): r for r in new if name_of(r.problem) not in solves}, ctx)
            asked += new
            kept += [r for r in new if not solves[name_of(r.problem)]]
        self.state["tried"] += len(solves)
        self.state["solved"] += sum(solves.values())
        return list(islice(cycle(kept or asked), n)) if asked else []

    def report(self) -> Info:
        """Returns the share of problems that greedy decoding solves, of those tried since the last report."""
        tried, solved = self.state["tried"], self.state["solved"]
        self.state |= {"solved": 0.0, "tried": 0.0}
        return {"curriculum/solved": solved / tried} if tried else {}

    async def _try(self, unseen: dict[str, Request], ctx: Ctx) -> dict[str, bool]:
        """Returns name of a problem -> whether one greedy sample solves it."""
        if not unseen:
            return {}
        greedy = replace(ctx.sampling, greedy=True, epsilon=0.0)
        batch = await ctx.probe([Request(r.problem, 1, greedy) for r in unseen.values()], tag="probe")
        right = (batch.outcome(self.reward) >= self.solved) & find_usable(batch) & batch["leaf"]
        solved = set(batch["problem"][right].tolist())
        return {name: int(name) in solved for name in unseen}

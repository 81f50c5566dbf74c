"""Wins of an answer over others of its prompt, by a task that knows which of two answers is preferred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from shuhari.bounds import Length, check
from shuhari.data import ContractError, Request, Trajectory
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, ability
from shuhari.tasks.source import answer_text


@register("reward", "duel")
@dataclass
class Duel:
    """Share of its duels, in [0, 1], that an answer wins: against the other samples of its prompt, or against answers
    that another role gives. For tasks that compare two answers (`compare`), such as `letters`.

    With `drawn` each duel is decided by chance with the probability that the task states, once for both sides; without
    it the grade is the mean probability. An empty group, or a greedy evaluation, has no other samples: ungraded, unless
    there is a role. Raises ContractError for a task that compares nothing.
    """

    against: str = ""
    """Role whose answers are the opponents, such as `previous`; "" takes the other samples of the group."""
    n: Length = 1
    """Number of answers that the role gives to each prompt."""
    drawn: bool = True
    """Decide each duel by chance, as somebody who is asked does; false takes the probability of a win."""
    name: str = "win"
    """Name of the grade, so that its column is `reward/<name>`."""

    @property
    def stamps(self) -> tuple[str, ...]:
        return (f"reward/{self.name}",)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.against,) if self.against else ()

    def __post_init__(self) -> None:
        check(self)

    async def grade(self, group: Sequence[Trajectory], ctx: Ctx) -> list[Mapping[str, float] | None]:
        """Returns one grade per leaf."""
        compare = ability(ctx.task, "compare")
        if compare is None:
            expected = "expected one that has compare(problem, first, second)"
            raise ContractError(f"reward duel: the task compares no answers: {expected}")
        leaves = [
            (t, [t.steps[i] for i in path])
            for t in group
            for path in t.paths()
        ]
        texts = [
            answer_text(steps) if any(s.action is not None for s in steps) else None
            for _, steps in leaves
        ]
        if not leaves:
            return []
        request = leaves[0][0].request
        played = [i for i, text in enumerate(texts) if text is not None]
        others = await self._ask(request, ctx) if self.against else []
        won = torch.zeros(len(texts), 2, dtype=torch.float64)  # wins and duels
        draws = torch.rand(len(texts), max(len(texts), len(others)), generator=ctx.rng("duel", self.name))
        for place, i in enumerate(played):
            for j, other in enumerate(others):
                p = compare(request.problem, str(texts[i]), other)
                won[i] += torch.tensor([float(draws[i, j] < p) if self.drawn else p, 1.0])
            for j in () if self.against else played[:place]:
                p = compare(request.problem, str(texts[i]), str(texts[j]))
                p = float(draws[i, j] < p) if self.drawn else p
                won[i] += torch.tensor([p, 1.0])
                won[j] += torch.tensor([1 - p, 1.0])
        return [{self.name: float(w / n)} if n else None for w, n in won.tolist()]

    async def _ask(self, request: Request, ctx: Ctx) -> list[str]:
        """Returns the opponents' answers."""
        start = ctx.encode(request.problem.prompt, self.against)
        key = (request.key, self.against, "duel", self.name)
        traces = await ctx.engine.sample(self.against, start, request.sampling, self.n, key=key)
        return [ctx.text(trace.action, self.against) for trace in traces]

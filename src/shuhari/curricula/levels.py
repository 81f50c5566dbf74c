"""Problems by their level: first which level, then the next problem of it.

Two ways to say which: shares that are given (`levels`), and what each level has paid of late (`bandit`). A level is
what a problem's `info` says under `key` (its difficulty, its domain, its length); with no key, its task.

Axes: `L` levels, `B` rows, `K` positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Length, Positive, PositiveShare, check
from shuhari.data import ContractError, Info, Problem, Request, nearest
from shuhari.events import Collected, Event
from shuhari.kernel.pack import find_usable
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Curriculum
from shuhari.ports.declares import together

PATIENCE = 100  # how often candidates are asked again for a level of which none comes
SHELF = 4096  # problems of a level that wait at most, and that are remembered


@register("curriculum", "levels")
@dataclass
class Levels:
    """Draws the difficulty level (or domain) of each problem by fixed shares, then takes the next problem of that
    level.

    What `candidates` give of other levels waits for its turn. So a level is seen as often as its share says, however
    many problems it has; a stage may have shares of its own. Raises ContractError for a problem whose `info` lacks
    `key`, ValueError where no share is above 0, and where candidates give none of a level that has one.
    """

    candidates: Curriculum
    """Curriculum that supplies the problems, mostly `sequential`."""
    shares: Mapping[str, AtLeast0]
    """Share of the problems that each level gets, by level, 0 or more; their sum may be any."""
    key: str = ""
    """Key of a problem's `info` that holds its level; "" takes the problem's task."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"shelves": {}, "taken": {}})

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), self.candidates)

    def __post_init__(self) -> None:
        check(self)
        if not any(x > 0 for x in self.shares.values()):
            raise ValueError(f"levels: shares are {dict(self.shares)}: expected one above 0")

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        drawn = draw_levels(list(self.shares), torch.tensor(list(self.shares.values())), n, ctx)
        return [await take(level, self.state["shelves"], self, n, ctx) for level in drawn]


@register("curriculum", "bandit")
@dataclass
class Bandit:
    """A bandit over difficulty levels: those with large advantages of late are drawn more often (SEC, Chen et al. 2025,
    arXiv 2505.14970).

    Draws the level of each problem from softmax(Q / tau), then takes the next problem of it, as `levels` does. After a
    step each level that was seen has Q <- alpha r + (1 - alpha) Q, where r is the mean |advantage| over all decisions
    of its problems; Q is 0 at first, and stays where a level was not seen. Decisions of groups whose outcomes are all
    alike have advantage 0 and count. Levels are those of the first problems, and any that comes later. A request has
    `arm`, the number of its level, as a column. The report has `curriculum/share@<level>`, the chance that a problem
    was of it, and `curriculum/pay@<level>`, its Q.
    """

    candidates: Curriculum
    """Curriculum that supplies the problems, mostly `sequential`."""
    key: str = ""
    """Key of a problem's `info` that holds its level; "" takes the problem's task."""
    alpha: PositiveShare = 0.5
    """Step size of a level's moving average, in (0, 1]; 1 remembers only the last step."""
    tau: Positive = 0.4
    """Temperature of the softmax over levels, in units of the advantage; larger draws them more evenly."""
    look: Length = 64
    """Number of problems drawn at the start to find out which levels there are."""
    column: str = "advantage"
    """Column [B, K] whose mean size is a level's pay."""
    state: dict[str, Any] = field(
        init=False, default_factory=lambda: {"shelves": {}, "taken": {}, "pay": {}, "shares": {}}
    )

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together(("arm",), self.candidates)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def __post_init__(self) -> None:
        check(self)

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        shelves, pay = self.state["shelves"], self.state["pay"]
        if not shelves:
            shelve(await self.candidates.select(self.look, ctx), shelves, self.key)
        for level in shelves:
            pay.setdefault(level, 0.0)
        shares = (torch.tensor(list(pay.values()), dtype=torch.float64) / self.tau).softmax(0)
        self.state["shares"] = dict(zip(pay, shares.tolist(), strict=True))
        drawn = draw_levels(list(pay), shares, n, ctx)
        asked = [await take(level, shelves, self, n, ctx) for level in drawn]
        arms = {level: float(i) for i, level in enumerate(pay)}
        return [replace(r, info={**r.info, "arm": arms[level]}) for r, level in zip(asked, drawn, strict=True)]

    def observe(self, event: Event) -> None:
        if isinstance(event, Collected) and "arm" in event.batch and self.column in event.batch:
            names = list(self.state["pay"])
            for arm, r in mean_size(event.batch, self.column).items():
                self.state["pay"][names[arm]] += self.alpha * (r - self.state["pay"][names[arm]])

    def report(self) -> Info:
        """The levels' shares in the last choice, and their pay since."""
        shares, pay = self.state["shares"], self.state["pay"]
        return (
            {f"curriculum/share@{k}": x for k, x in shares.items()}
            | {f"curriculum/pay@{k}": pay[k] for k in shares}
        )


def draw_levels(names: list[str], shares: Tensor, n: int, ctx: Ctx) -> list[str]:
    """n of the levels, with replacement, by their shares [L]."""
    return [names[i] for i in torch.multinomial(shares, n, replacement=True, generator=ctx.rng("levels")).tolist()]


async def take(level: str, shelves: dict[str, dict[str, Request]], of: Levels | Bandit, n: int, ctx: Ctx) -> Request:
    """The problem of a level that waits longest, or the next of it that `of.candidates` give, asked for n at a time; of
    a level that is so rare that none comes, those that were taken come again."""
    shelf = shelves.setdefault(level, {})
    taken: dict[str, Request] = of.state["taken"].setdefault(level, {})
    for _ in range(PATIENCE):
        if shelf:
            break
        shelve(await of.candidates.select(n, ctx), shelves, of.key)
    if not shelf:
        shelf.update(taken)
        taken.clear()
    if shelf:
        name = next(iter(shelf))
        request = taken[name] = shelf.pop(name)
        if len(taken) > SHELF:
            taken.pop(next(iter(taken)))
        return request
    there = nearest(level, shelves.keys() - {level})
    raise ValueError(f"no problem of {of.key or 'task'} {level!r} among {PATIENCE * n} candidates; {there}")


def shelve(asked: list[Request], shelves: dict[str, dict[str, Request]], key: str) -> None:
    """Put each request behind those of its level, by its problem, unless that waits there or the shelf is full."""
    for request in asked:
        shelf = shelves.setdefault(find_level(request.problem, key), {})
        if len(shelf) < SHELF:
            shelf.setdefault(f"{request.problem.task} {request.problem.id}", request)


def find_level(problem: Problem, key: str) -> str:
    """What the info of a problem says under `key`; with no key, its task. ContractError where it says nothing."""
    if not key:
        return problem.task
    if key not in problem.info:
        whose = f"problem {problem.id!r} of {problem.task}"
        raise ContractError(f"{whose} has no {key!r} in its info: {nearest(key, problem.info)}")
    return str(problem.info[key])


def mean_size(batch: Batch, column: str) -> dict[int, float]:
    """Arm -> the mean |x| of `column` [B, K] over the decisions of its rows; failed and ungraded rows do not count."""
    rows = find_usable(batch) & ~batch.outcome().isnan()
    counts = batch["mask"] & rows[:, None]
    size = (batch[column].abs() * counts).sum(1)
    arm = batch["arm"].long()
    found = {}
    for i in arm[rows].unique().tolist():
        of = (arm == i) & rows
        if n := int(counts[of].sum()):
            found[int(i)] = float(size[of].sum()) / n
    return found

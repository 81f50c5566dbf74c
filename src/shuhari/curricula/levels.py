"""Problems by level: first a level is drawn, then the next problem of that level.

The level is drawn by fixed shares (`levels`) or by recent advantages of each level (`bandit`). A problem's level is its
`info[key]` (difficulty, domain, length); without a key, its task.

Axes: `L` levels, `B` rows, `K` positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import AtLeast0, Length, PositiveNumber, PositiveShare, check
from shuhari.data import ContractError, Info, Problem, Request, nearest
from shuhari.events import Collected, Event
from shuhari.kernel.pack import find_usable
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Curriculum
from shuhari.ports.declares import together

PATIENCE = 100  # number of attempts to find a problem of a level
SHELF = 4096  # largest number of waiting problems of a level, and of remembered ones


@register("curriculum", "levels")
@dataclass
class Levels:
    """Draws the difficulty level (or domain) of each problem by fixed shares, then takes the next problem of that
    level.

    Candidates of other levels are kept for later. So the frequency of a level is its share, however many problems it
    has; a stage may set its own shares. Raises ContractError for a problem whose `info` lacks `key`, ValueError if
    no share is above 0 or candidates give no problem of a level with one.
    """

    candidates: Curriculum
    """Curriculum that supplies the problems, mostly `sequential`."""
    shares: Mapping[str, AtLeast0]
    """Share of the problems of each level, 0 or more; their sum may be any."""
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
    """A bandit over difficulty levels: levels with recently large advantages are drawn more often (SEC, Chen et al.
    2025, arXiv 2505.14970).

    Draws the level of each problem from softmax(Q / tau), then takes the next problem of it, as `levels` does. After a
    step, each sampled level gets Q <- alpha r + (1 - alpha) Q, where r is the mean |advantage| over all decisions of
    its problems; Q starts at 0 and is unchanged for other levels. Decisions of groups with equal outcomes have
    advantage 0 and count. Levels are found in the first problems, and added as they appear. A request has `arm`, the
    number of its level, as a column. The report has `curriculum/share@<level>`, the probability of each level, and
    `curriculum/pay@<level>`, its Q.
    """

    candidates: Curriculum
    """Curriculum that supplies the problems, mostly `sequential`."""
    key: str = ""
    """Key of a problem's `info` that holds its level; "" takes the problem's task."""
    alpha: PositiveShare = 0.5
    """Step size of a level's moving average, in (0, 1]; 1 remembers only the last step."""
    tau: PositiveNumber = 0.4
    """Temperature of the softmax over levels, in units of the advantage; larger draws them more evenly. A ramp from
    large to small explores first, and commits to the best level then."""
    look: Length = 64
    """Number of problems drawn at the start to find the levels."""
    column: str = "advantage"
    """Column [B, K] whose mean absolute value is a level's reward."""
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
        shares = (torch.tensor(list(pay.values()), dtype=torch.float64) / ctx.at(self.tau)).softmax(0)
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
        """Returns the levels' shares at the last choice, and their Q since."""
        shares, pay = self.state["shares"], self.state["pay"]
        return (
            {f"curriculum/share@{k}": x for k, x in shares.items()}
            | {f"curriculum/pay@{k}": pay[k] for k in shares}
        )


def draw_levels(names: list[str], shares: Tensor, n: int, ctx: Ctx) -> list[str]:
    """Draws n levels with replacement, by their shares [L]."""
    return [names[i] for i in torch.multinomial(shares, n, replacement=True, generator=ctx.rng("levels")).tolist()]


async def take(level: str, shelves: dict[str, dict[str, Request]], of: Levels | Bandit, n: int, ctx: Ctx) -> Request:
    """Returns the problem of a level that has waited longest, or the next one from `of.candidates`, requested n at a
    time. If the level is so rare that none comes, its earlier problems are repeated."""
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
    raise ValueError(f"none of {PATIENCE * n} candidates has {of.key or 'task'} {level!r}; {there}")


def shelve(asked: list[Request], shelves: dict[str, dict[str, Request]], key: str) -> None:
    """Appends each request to the queue of its level, by problem, unless it is already there or the queue is full."""
    for request in asked:
        shelf = shelves.setdefault(find_level(request.problem, key), {})
        if len(shelf) < SHELF:
            shelf.setdefault(f"{request.problem.task} {request.problem.id}", request)


def find_level(problem: Problem, key: str) -> str:
    """Returns a problem's `info[key]`; without a key, its task. Raises ContractError if its info lacks the key."""
    if not key:
        return problem.task
    if key not in problem.info:
        whose = f"problem {problem.id!r} of {problem.task}"
        raise ContractError(f"{whose} has no {key!r} in its info: {nearest(key, problem.info)}")
    return str(problem.info[key])


def mean_size(batch: Batch, column: str) -> dict[int, float]:
    """Returns arm -> the mean |x| of `column` [B, K] over the decisions of its rows, without failed and ungraded
    rows."""
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

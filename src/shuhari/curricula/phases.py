"""Problems in phases: first one kind or prompt length, then the next, with some earlier problems repeated.

Sources: QwenLong-L1 (Wan et al. 2025, arXiv 2505.17667), section 3: phases by input length, with hard problems of
earlier phases again; Nemotron-Cascade (Wang et al. 2025, arXiv 2512.13607): one domain after the other. Left out: other
changes between phases (use a stage, which can have other rewards, lengths and learning rates).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor
from typing import Any

import torch

from shuhari.bounds import Length, Share, check
from shuhari.curricula.levels import find_level
from shuhari.curricula.others import look
from shuhari.curricula.target import name_of
from shuhari.data import Info, Number, Problem, Ramp, Request, list_scores
from shuhari.events import Collected, Event
from shuhari.kernel.registry import register
from shuhari.ports import Ctx, Curriculum
from shuhari.ports.declares import together

PATIENCE = 100  # number of attempts to find a problem of the phase
KEPT = 4096  # largest number of problems waiting for a phase, and of remembered ones
EPSILON = 1e-9  # so that 0.3 x 10 is 3


@register("curriculum", "phases")
@dataclass
class Phases:
    """Problems in phases of equal length: first one kind or prompt length, then the next, with some hard earlier ones
    again.

    A phase uses its own problems among the `candidates`; problems of later phases wait. By `limits`, a problem
    belongs to the first phase whose limit it fits, and to none if it is longer than the last. Repeated problems are
    drawn without replacement with weight 1 / (mean `measure` of their last group), the mean counting as at least 1 /
    (its samples). If many candidates have no problem of the phase, they are used as they come. With one phase and no
    repetition it equals `candidates`, bit for bit. Reports `curriculum/phase`, from 0 on.

    Raises ValueError for both or neither of `order` and `limits`, and limits that do not rise.
    """

    candidates: Curriculum
    """Curriculum that supplies the problems, mostly `sequential`."""
    order: tuple[tuple[str, ...], ...] = ()
    """Levels of each phase in turn, as lists of values of `key`; empty if phases go by `limits`."""
    limits: tuple[Length, ...] = ()
    """Longest prompt of each phase, in tokens, rising; empty if phases go by `order`."""
    key: str = ""
    """Key of a problem's `info` that holds its level; "" takes the problem's task."""
    again: Share = 0.0
    """Share of each batch that repeats problems of earlier phases, rounded down, hard ones more often; 0 repeats
    none."""
    measure: str = "score"
    """Name of the reward that rates how well an earlier problem was solved."""
    role: str = "policy"
    """Role whose tokenizer counts the prompt's length."""
    progress: Number = field(default_factory=lambda: Ramp(0.0, 1.0))
    """Position in the training, from 0 (first phase) to 1 (end of the last); by default it follows the stage's
    budget."""
    state: dict[str, Any] = field(
        init=False, default_factory=lambda: {"waiting": {}, "asked": {}, "empty": [], "phase": 0}
    )

    @property
    def stamps(self) -> tuple[str, ...] | None:
        return together((), self.candidates)

    @property
    def reads(self) -> tuple[str, ...]:
        return (f"reward/{self.measure}",) if self.again else ()

    def __post_init__(self) -> None:
        check(self)
        if bool(self.order) == bool(self.limits):
            raise ValueError(f"phases: order is {self.order} and limits are {self.limits}: expected one of them")
        if list(self.limits) != sorted(set(self.limits)):
            raise ValueError(f"phases: limits are {self.limits}: expected that they rise")
        self.count = len(self.order or self.limits)

    async def select(self, n: int, ctx: Ctx) -> list[Request]:
        phase = self.state["phase"] = min(int(ctx.at(self.progress) * self.count + EPSILON), self.count - 1)
        old = self._draw_again(floor(n * self.again + EPSILON), phase, ctx)
        new = await self._take(n - len(old), phase, ctx) if len(old) < n else []
        asked = self.state["asked"]
        for request in new if self.again else ():
            asked[name_of(request.problem)] = {"phase": phase, "rate": None, "request": request}
            if len(asked) > KEPT:
                asked.pop(next(iter(asked)))
        return new + old

    def observe(self, event: Event) -> None:
        for group in event.groups if isinstance(event, Collected) else ():
            seen = self.state["asked"].get(name_of(group[0].request.problem)) if group else None
            if seen is not None and (scores := list_scores(group, self.measure)):
                seen["rate"] = max(sum(scores) / len(scores), 1 / len(scores))

    def report(self) -> Info:
        return {"curriculum/phase": self.state["phase"]}

    def find_phase(self, problem: Problem, ctx: Ctx) -> int:
        """Returns the phase of a problem, from 0 on; -1 if it belongs to none."""
        if self.order:
            level = find_level(problem, self.key)
            return next((i for i, levels in enumerate(self.order) if level in levels), -1)
        prompt: Any = ctx.encode(problem.prompt, self.role)
        return next((i for i, limit in enumerate(self.limits) if len(prompt) <= limit), -1)

    def _draw_again(self, wanted: int, phase: int, ctx: Ctx) -> list[Request]:
        """Draws up to `wanted` problems of earlier phases, harder ones more often."""
        seen = [s for s in self.state["asked"].values() if s["phase"] < phase and s["rate"] is not None]
        if not seen or not wanted:
            return []
        weights = torch.tensor([1 / s["rate"] for s in seen], dtype=torch.float64)
        drawn = torch.multinomial(weights, min(wanted, len(seen)), generator=ctx.rng("phases"))
        return [seen[i]["request"] for i in drawn.tolist()]

    async def _take(self, n: int, phase: int, ctx: Ctx) -> list[Request]:
        """Returns the next n problems of a phase."""
        waiting: list[Request] = self.state["waiting"].setdefault(str(phase), [])
        for i in range(PATIENCE):
            if len(waiting) >= n or phase in self.state["empty"]:
                break
            for request in await look(self.candidates, n, i, ctx):
                of = self.find_phase(request.problem, ctx)
                shelf = self.state["waiting"].setdefault(str(of), []) if of >= phase else []
                if len(shelf) < KEPT:
                    shelf.append(request)
        taken, self.state["waiting"][str(phase)] = waiting[:n], waiting[n:]
        if len(taken) == n:
            return taken
        if phase not in self.state["empty"]:
            self.state["empty"].append(phase)
        return taken + await self.candidates.select(n - len(taken), ctx)

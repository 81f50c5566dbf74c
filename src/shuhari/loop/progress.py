"""The position of a run: its stage, what that stage has spent, and how long everything took."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shuhari.config.overlay import BUDGETS, RecipeError
from shuhari.data import Count

if TYPE_CHECKING:
    from shuhari.config.stage import Components

IDLE = 20  # steps of a stage that spends nothing of its budget, before that is an error


class Progress:
    """The stages of a run and the ledger that their budgets are read from."""

    def __init__(self, stages: Sequence[Components], ledger: dict[str, float]) -> None:
        self.stages, self.ledger = stages, ledger
        self.index = 0
        self.entered = False
        self.started: dict[str, float] = {}  # the ledger when this stage began
        self.wall, self._since = 0.0, time.monotonic()
        self.ended, self.halted = "", False  # why the stage ends before its budget is spent; and all of the run with it
        self.seen: dict[str, Any] = {}  # what the stage's `stop` remembers

    @property
    def stage(self) -> Components:
        return self.stages[self.index]

    @property
    def steps(self) -> int:
        """Steps of this stage so far, which schedules count."""
        return int(self.ledger.get("steps", 0) - self.started.get("steps", 0))

    def count(self) -> Count:
        """Return the position of schedules in this stage: its steps so far, and how much it has spent of its budget: of
        steps, or of the first of BUDGETS that it has if it has none of steps."""
        steps, budget = float(self.steps), self.stage.budget
        unit = "steps" if "steps" in budget else next(b for b in BUDGETS if b in budget)
        return Count(steps, self._spent(unit), budget[unit] or 1.0, in_steps=unit == "steps")

    def left(self) -> float:
        """Return the number of steps that the stage has after the current one; inf if its budget is not in steps."""
        return self.stage.budget.get("steps", math.inf) - self.steps - 1

    def seconds(self) -> float:
        """Return the wall time over all sittings."""
        return self.wall + time.monotonic() - self._since

    def spent(self) -> Mapping[str, tuple[float, float]]:
        """Return budget -> (spent in this stage, allowed). Spending under a tag (a probe) counts, except for
        evaluation, which is no part of a method."""
        return {k: (self._spent(k), v) for k, v in self.stage.budget.items()}

    def _spent(self, unit: str) -> float:
        now = self.seconds() if unit == "seconds" else _total(self.ledger, unit)
        return now - _total(self.started, unit)

    def over(self) -> bool:
        """Whether a budget of this stage is spent; for a stage that only measures (0 steps), whether it was entered.
        Raises RecipeError if the stage never spends any of it."""
        if self.stage.budget.get("steps") == 0:
            return self.entered
        spent = self.spent()
        if self.steps >= IDLE and "updates" not in spent and not any(done for done, _ in spent.values()):
            used = ", ".join(sorted(k for k, v in self.ledger.items() if v != self.started.get(k, 0)))
            message = f"{self.steps} steps of stage {self.stage.name!r} spent nothing of it, only {used}"
            raise RecipeError(" or ".join(spent), f"{message}: give the budget in one of these")
        return any(done >= allowed for done, allowed in spent.values())

    def done(self) -> bool:
        """Whether the last stage is over, or the run was halted; moves on to the next stage if this one is over."""
        while self.ended or self.over():
            if self.halted or self.index + 1 == len(self.stages):
                return True
            self.ended, self.seen = "", {}
            self.index, self.entered = self.index + 1, False
            self.started = {**self.ledger, "seconds": self.seconds()}
        return False


def _total(ledger: Mapping[str, float], what: str) -> float:
    return sum(amount for name, amount in ledger.items() if counts(name, what))


def counts(name: str, what: str) -> bool:
    """Whether an entry of a ledger counts as spending of `what`: under any tag but `evaluate/`, which is no part of a
    method."""
    *tag, kind = name.split("/")
    return kind == what and "evaluate" not in tag

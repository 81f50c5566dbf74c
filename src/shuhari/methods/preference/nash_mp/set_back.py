"""The return after the first of two half-steps: mirror prox takes each step again, from where it began.

Source: "Accelerating Nash Learning from Human Feedback via Mirror Prox" (2025), arXiv 2505.19731, algorithm 1. The
opponent and the anchor are plain copies (`follow`, `copy`), after each half-step and after each second one. Left out:
the slow average of weights that replaces these copies in the deep variant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shuhari.bounds import Length, check
from shuhari.events import Event, On, When
from shuhari.kernel.registry import register
from shuhari.models.follow import Ema
from shuhari.ports import Model


@register("follow", "set_back")
@dataclass
class SetBack:
    """Set a role back to another's weights after `half`, 3 `half`, 5 `half`, ... updates: it has looked ahead.

    The rule comes behind that of the opponent, which has copied the half-step by then. The optimiser keeps its memory.
    Raises ValueError for roles whose weights do not match.
    """

    role: str = "policy"
    """Role that is set back; in a recipe the name of the table, `[follow.<role>]`."""
    of: str = "anchor"
    """Role with the weights of the last whole step."""
    half: Length = 8
    """Number of updates of a half-step; more come nearer to its optimum."""
    on: On = field(default="update", kw_only=True)
    """Event that is counted: `update` of a learner, or `step`."""
    learner: str = field(default="", kw_only=True)
    """Learner whose updates count with `on = "update"`; empty counts any learner's."""

    def __post_init__(self) -> None:
        check(self)
        self._when = When(on=self.on, learner=self.learner)
        self._copy = Ema(self.role, self.of, rate=1.0, on=self.on, learner=self.learner)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.of

    @property
    def state(self) -> dict[str, Any]:
        return self._when.state

    @state.setter
    def state(self, tree: dict[str, Any]) -> None:
        self._when.state = tree

    def __call__(self, models: Mapping[str, Model], event: Event) -> None:
        if not self._when.due(event):
            return
        halves, rest = divmod(self.state["heard"], self.half)
        if not rest and halves % 2:
            self._copy(models, event)

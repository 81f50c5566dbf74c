"""Two half-steps of mirror prox: the second is played against the end of the first, and begins where the first began.

Source: "Accelerating Nash Learning from Human Feedback via Mirror Prox" (2025), arXiv 2505.19731, algorithm 1. Left
out: the slow average of weights that replaces the hard copies of its deep variant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from shuhari.bounds import Length, check
from shuhari.events import Event, On, When
from shuhari.kernel.registry import register
from shuhari.needs import role_model
from shuhari.ports import Model


@register("follow", "halves")
@dataclass
class Halves:
    """Move the roles of mirror prox every `half` updates: `role` (the opponent) becomes `of` (the policy), and

        after the first half    `of` goes back to `anchor`, pi_k: it has looked ahead
        after the second half   `anchor` becomes `of`, pi_{k+1}

    All three roles have the same architecture. The optimiser keeps its memory of the first half.
    """

    role: str
    """Role of the opponent; in a recipe the name of the table, `[follow.<role>]`."""
    of: str = "policy"
    """Role that is trained."""
    anchor: str = "anchor"
    """Role with the weights of the last whole iteration, pi_k, to which the proximal term holds."""
    half: Length = 8
    """Number of updates of a half-step; more come nearer to its optimum."""
    on: On = field(default="update", kw_only=True)
    """Event that is counted: `update` of a learner, or `step`."""
    learner: str = field(default="", kw_only=True)
    """Learner whose updates count with `on = "update"`; empty counts any learner's."""

    def __post_init__(self) -> None:
        check(self)
        self._when = When(on=self.on, learner=self.learner)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.of, self.anchor

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
        if rest:
            return
        _copy(models, self.role, self.of)
        if halves % 2:
            _copy(models, self.of, self.anchor)
        else:
            _copy(models, self.anchor, self.of)


@torch.no_grad()
def _copy(models: Mapping[str, Model], to: str, of: str) -> None:
    """Copies all weights and buffers in place. Raises ValueError for roles of different architectures."""
    mine, theirs = (role_model(models, name).module.state_dict() for name in (to, of))
    if [(k, v.shape) for k, v in mine.items()] != [(k, v.shape) for k, v in theirs.items()]:
        raise ValueError(f"follow halves: {to!r} and {of!r} have different weights: expected roles of one architecture")
    for name, weights in mine.items():
        weights.copy_(theirs[name])

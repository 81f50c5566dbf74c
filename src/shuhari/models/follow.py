"""Updates one role's weights from another's: target networks, reference policies, averages of iterates.

Leaves out averages that count from a start. `events.When` has the events that a rule counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shuhari.bounds import Count, Length, PositiveShare, check
from shuhari.data import nearest
from shuhari.events import Event, On, When
from shuhari.kernel.registry import register
from shuhari.needs import role_model
from shuhari.ports import Model

Pair = tuple[nn.Module, nn.Module, list[Tensor], list[Tensor], int]  # both modules, their tensors, parameters first


@register("follow", "copy", rate=1.0)
@register("follow", "ema")
@dataclass
class Ema:
    """Update a role's weights from another's: role <- role + rate (of - role) (Polyak averaging, for target networks);
    as `copy`, role <- of.

    Buffers, such as the moments that normalise observations, are copied. `events.When` counts events. Raises ValueError
    for roles whose weights do not match.
    """

    role: str
    """Role whose weights follow; in a recipe the name of the table, `[follow.<role>]`."""
    of: str = "policy"
    """Role whose weights are followed."""
    rate: PositiveShare = 0.005
    """Share of the way to the other role's weights at each update (Polyak's tau), in (0, 1]; 1 copies them."""
    on: On | tuple[On, ...] = field(default="update", kw_only=True)
    """Event that is counted: `update` of a learner, `step`, `stage` (its start), or `plateau` of an evaluation's score;
    or a list of these."""
    every: Length = field(default=1, kw_only=True)
    """Number of events for each update of the weights."""
    first: Count = field(default=0, kw_only=True)
    """Number of the event of the first update; 0 is `every`. Two rules of one `every` may take turns so."""
    learner: str = field(default="", kw_only=True)
    """Learner whose updates count with `on = "update"`; empty counts any learner's."""
    metric: str = field(default="greedy", kw_only=True)
    """Evaluation score that decides a plateau with `on = "plateau"`, such as `greedy`; larger is better."""
    patience: Length = field(default=3, kw_only=True)
    """Number of evaluations in a row without a new best `metric` that make a plateau."""

    def __post_init__(self) -> None:
        check(self)
        when = {name: getattr(self, name) for name in ("on", "every", "first", "learner", "metric", "patience")}
        self._when = When(**when)
        self._pair: Pair | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        return self.role, self.of

    @property
    def state(self) -> dict[str, Any]:
        return self._when.state

    @state.setter
    def state(self, tree: dict[str, Any]) -> None:
        self._when.state = tree

    def due(self, event: Event) -> bool:
        """Counts an event; returns whether an update is due."""
        return self._when.due(event)

    def __call__(self, models: Mapping[str, Model], event: Event) -> None:
        if self.due(event):
            self._pair = _pair(self, models)
            _move(self._pair, self.rate)


Copy = partial(Ema, rate=1.0)  # as registered under `copy`


def _pair(rule: Ema, models: Mapping[str, Model]) -> Pair:
    """Returns pairs of the tensors of both roles, matched by name, without those that only `of` has."""
    mine, theirs = role_model(models, rule.role).module, role_model(models, rule.of).module
    known = rule._pair
    if known is not None and known[0] is mine and known[1] is theirs:
        return known
    if mine is theirs:
        raise ValueError(f"follow {rule.role!r}: it has the same weights as {rule.of!r}, so there is nothing to follow")
    to, source = dict(_tensors(mine)), dict(_tensors(theirs))
    for name, x in to.items():
        if name not in source or source[name].shape != x.shape:
            found = tuple(source[name].shape) if name in source else nearest(name, source)
            raise ValueError(f"follow {rule.role!r}: {name} {tuple(x.shape)} has no match in role {rule.of!r}: {found}")
    return mine, theirs, list(to.values()), [source[n] for n in to], len(list(mine.parameters()))


def _tensors(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


@torch.no_grad()
def _move(pair: Pair, rate: float) -> None:
    _, _, to, source, n = pair
    if rate == 1:
        torch._foreach_copy_(to, source)
        return
    torch._foreach_lerp_(to[:n], source[:n], rate)
    if to[n:]:
        torch._foreach_copy_(to[n:], source[n:])

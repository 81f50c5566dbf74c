"""Followers: the weights of one role move after another's (target nets, references, averages of iterates).

Leaves out averages that count from a start. A rule hears the events of its `on`: `update` (each of `learner`, or of
any), `step`, `stage` (its start), `plateau` (`patience` evaluations in a row without a new best of `metric`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shuhari.data import nearest
from shuhari.events import EVENTS
from shuhari.needs import role_model
from shuhari.ports import Evaluated, Event, Model, Updated
from shuhari.registry import register

On = Literal["update", "step", "stage", "plateau"]
Pair = tuple[nn.Module, nn.Module, list[Tensor], list[Tensor], int]  # both modules, their tensors, parameters first


@register("follow", "ema")
@dataclass
class Ema:
    """role <- role + rate (of - role), on every `every`-th event (Polyak averaging). Buffers, such as the moments by
    which observations are normalised, are copied.

    `rate` in (0, 1]. With on = plateau, `metric` is the name of an evaluation's score, larger is better."""

    role: str
    of: str = "policy"
    rate: float = 0.005
    every: int = 1
    on: On = "update"
    learner: str = ""
    metric: str = "greedy"
    patience: int = 3
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"heard": 0})

    def __post_init__(self) -> None:
        _check(self)
        if not 0 < self.rate <= 1:
            raise ValueError(f"follow {self.role!r}: rate is {self.rate}: expected a number in (0, 1]")
        self._pair: Pair | None = None

    def __call__(self, models: Mapping[str, Model], event: Event) -> None:
        if _due(self, event):
            self._pair = _paired(self, models)
            _move(self._pair, self.rate)


@register("follow", "copy")
@dataclass
class Copy:
    """role <- of, on every `every`-th event. With on = plateau, `metric` is the name of an evaluation's score, larger
    is better."""

    role: str
    of: str = "policy"
    every: int = 1
    on: On = "update"
    learner: str = ""
    metric: str = "greedy"
    patience: int = 3
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"heard": 0})

    def __post_init__(self) -> None:
        _check(self)
        self._pair: Pair | None = None

    def __call__(self, models: Mapping[str, Model], event: Event) -> None:
        if _due(self, event):
            self._pair = _paired(self, models)
            _move(self._pair, 1.0)


def _check(rule: Ema | Copy) -> None:
    if rule.on not in EVENTS:
        raise ValueError(f"follow {rule.role!r}: on is {rule.on!r}; {nearest(rule.on, EVENTS)}")
    for name in ("every", "patience"):
        if getattr(rule, name) < 1:
            raise ValueError(f"follow {rule.role!r}: {name} is {getattr(rule, name)}: expected at least 1")


def _due(rule: Ema | Copy, event: Event) -> bool:
    """Count an event; whether the rule acts on it."""
    if not isinstance(event, EVENTS[rule.on]):
        return False
    if isinstance(event, Updated) and rule.learner not in ("", event.learner):
        return False
    if isinstance(event, Evaluated) and not _stuck(rule, event):
        return False
    rule.state["heard"] += 1
    return bool(rule.state["heard"] % rule.every == 0)


def _stuck(rule: Ema | Copy, event: Evaluated) -> bool:
    """Whether a plateau is reached; the wait then starts again."""
    if rule.metric not in event.scores:
        raise KeyError(f"follow {rule.role!r}: no score {rule.metric!r}; {nearest(rule.metric, event.scores)}")
    score, best = float(event.scores[rule.metric]), rule.state.get("best")
    better = best is None or score > best
    waited = 0 if better else rule.state.get("waited", 0) + 1
    rule.state |= {"best": score if better else best, "waited": waited % rule.patience}
    return waited == rule.patience


def _paired(rule: Ema | Copy, models: Mapping[str, Model]) -> Pair:
    """The tensors of both roles, matched by name; what only the leader has is left out."""
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

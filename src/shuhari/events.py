"""Events that a run sends to its components, in order, and the meaning of `on` in a follower or an optimiser's reset:
which kind of event, and which of them. An event that a listener sends is delivered after all have got the current one.

Axes: `B` rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from torch import Tensor

from shuhari.batch import Batch
from shuhari.bounds import Count, Length, check
from shuhari.data import EMPTY, Info, Trajectory, nearest


@dataclass(frozen=True, eq=False)
class Collected:
    """Rows were collected. `groups`: the graded trajectories that the rows come from, in the same order, which also
    hold what is no column, such as texts and requests; empty for lanes of environments."""

    batch: Batch
    groups: Sequence[Sequence[Trajectory]] = ()


@dataclass(frozen=True, eq=False)
class Loaded:
    """A whole data set was loaded, from which the stage will learn; sent once a stage, before its first update.
    `again`: it was sent before, and is repeated for components that are new in this stage, or that a resumed run has
    made anew without a `state`. A listener that counts rows skips it then."""

    batch: Batch
    again: bool = False


@dataclass(frozen=True, eq=False)
class Updated:
    """`ids` [B] are the rows learnt from, `columns` what the learner found out about them (priorities, errors)."""

    learner: str
    info: Info
    ids: Tensor | None = None
    columns: Mapping[str, Tensor] = EMPTY


@dataclass(frozen=True, eq=False)
class Amended:
    """Late news about stored rows: labels, advice."""

    ids: Tensor
    columns: Mapping[str, Tensor]


@dataclass(frozen=True)
class Evaluated:
    split: str
    scores: Mapping[str, float]


@dataclass(frozen=True)
class StageStarted:
    name: str


@dataclass(frozen=True)
class Committed:
    step: int


Event = Collected | Loaded | Updated | Amended | Evaluated | StageStarted | Committed

EVENTS = {"update": Updated, "step": Committed, "stage": StageStarted, "plateau": Evaluated}
On = Literal["update", "step", "stage", "plateau"]


def event_kinds(on: str | Sequence[str]) -> tuple[type, ...]:
    """The kinds of events that an `on` names. Raises ValueError for an unknown name."""
    return _kinds((on,) if isinstance(on, str) else tuple(on))


@cache
def _kinds(names: tuple[str, ...]) -> tuple[type, ...]:
    for name in names:
        if name not in EVENTS:
            raise ValueError(f"on is {name!r}; {nearest(name, EVENTS)}")
    return tuple(EVENTS[name] for name in names)


@dataclass(kw_only=True)
class When:
    """Every `every`-th event of one kind, or of the kinds of a list (`["stage", "step"]`) together: `update` (each of
    `learner`, or of any), `step`, `stage` (its start), or `plateau`: `patience` evaluations in a row without a new best
    of `metric`, the name of an evaluation's score, larger is better, on the problems that [evaluate] `watch` sets
    apart, if it does. The wait then starts again; the best score stays. `first`: the number of the first event that
    counts, from which on every `every`-th does; 0 is `every`."""

    on: On | tuple[On, ...] = "update"
    every: Length = 1
    first: Count = 0
    learner: str = ""
    metric: str = "greedy"
    patience: Length = 3
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"heard": 0})

    def __post_init__(self) -> None:
        check(self)

    def due(self, event: Event) -> bool:
        """Count an event, and return whether it is due. Raises KeyError for a metric that an evaluation lacks."""
        if not isinstance(event, event_kinds(self.on)):
            return False
        if isinstance(event, Updated) and self.learner not in ("", event.learner):
            return False
        if isinstance(event, Evaluated) and not self._stuck(event):
            return False
        self.state["heard"] += 1
        since = self.state["heard"] - self.first
        return bool(since >= 0 and since % self.every == 0)

    @property
    def waits_for(self) -> str:
        """The score whose plateau is waited for; "" if there is none."""
        return self.metric if Evaluated in event_kinds(self.on) else ""

    def _stuck(self, event: Evaluated) -> bool:
        """Whether a plateau is reached with this evaluation."""
        if self.metric not in event.scores:
            raise KeyError(f"on = 'plateau': no score {self.metric!r}; {nearest(self.metric, event.scores)}")
        score, best = float(event.scores[self.metric]), self.state.get("best")
        better = score == score and (best is None or score > best)  # NaN is no score
        waited = 0 if better else self.state.get("waited", 0) + 1
        self.state |= {"best": score if better else best, "waited": waited % self.patience}
        return waited == self.patience


class InOrder:
    """Call it to send an event. `hear` is called with one event at a time, in the order of sending."""

    def __init__(self, hear: Callable[[Event], None]) -> None:
        self.hear = hear
        self.waiting: list[Event] = []  # the one that is being heard, then those that it brought about

    def __call__(self, event: Event) -> None:
        self.waiting.append(event)
        if len(self.waiting) > 1:
            return
        try:
            while self.waiting:
                self.hear(self.waiting[0])
                del self.waiting[0]
        finally:
            self.waiting.clear()

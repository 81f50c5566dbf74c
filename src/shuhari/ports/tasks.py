"""Ports of what is to be solved: problems, their grade, and the worlds that they are played in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from shuhari.data import Problem, Step
from shuhari.ports.answers import Answers


class Source(Protocol):
    """Problems by index; `size` is None where there is no end."""

    def __getitem__(self, index: int) -> Problem: ...
    def size(self) -> int | None: ...


class Task(Protocol):
    """What is to be solved. `grade` names its rewards; `score` in [0, 1] is the task's own measure. `spaces` tells
    models of fixed size what they see and do (Gymnasium spaces; None for text).

    Optional: `make`, `alphabet`, `ungraded`, and a classmethod `preview` (see `shuhari.kernel.abilities`)."""

    def problems(self, split: str) -> Source: ...
    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any] | None: ...
    def environment(self, problem: Problem) -> Environment | None: ...
    def spaces(self) -> tuple[Any, Any] | None: ...  # (observation, action)


class Listing(Protocol):
    """What a Task may do beside: list a problem's answers, so that a metric can score them all (`metrics/exact`).
    `grade` must agree. None: they cannot be listed."""

    def answers(self, problem: Problem) -> Answers | None: ...


class Environment(Protocol):
    """One episode's world. `reset` and `step` may be coroutine functions. An observation that is a `Whole` takes the
    place of a context of text.

    Optional: `snapshot()`, a payload that `restore(snapshot)` takes back; `bind(ctx, key)`, before `reset`: whom to ask
    for models and noise, and what to name these by (`key` is this episode's own); `takes(trace)`: what `step` is to get
    of a decision; `facts`: column -> number or array, of the last step, with `executed` where that is not what it was
    sent; `close()`, when the episode is over."""

    def reset(self, problem: Problem) -> Any: ...  # the first observation
    def step(self, action: Any) -> Any: ...  # (observation, rewards by name, Status | None)

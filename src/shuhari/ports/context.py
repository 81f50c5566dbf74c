"""The run as components see it (`Ctx`)."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from collections.abc import Generator as Generator_
from contextlib import AbstractContextManager as ContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

from shuhari.batch import Batch
from shuhari.data import Number, Payload, Request, Sampling, Trajectory
from shuhari.events import Event
from shuhari.needs import Need, Noise

if TYPE_CHECKING:
    from shuhari.ports.engines import Engine
    from shuhari.ports.models import Model
    from shuhari.ports.tasks import Task

T = TypeVar("T")
Answer = TypeVar("Answer", covariant=True)


class Job(Protocol[Answer]):
    """Work in the background. `await` it in a coroutine, or check whether it is `done` and take its `result`, once."""

    @property
    def done(self) -> bool: ...
    def result(self) -> Answer: ...
    def __await__(self) -> Generator_[Any, None, Answer]: ...


class Ctx(Protocol):
    """The interface of the run to components. `rng` gives a `torch.Generator`: `torch.rand(n,
    generator=ctx.rng("name"))`."""

    step: int
    count: float  # where schedules stand: the step of the stage
    version: int
    engine: Engine
    task: Task
    curriculum: Any  # of the stage: a Curriculum
    ledger: dict[str, float]
    sampling: Sampling  # of requests that name none
    problems: list[str]  # what went wrong in this step, or is to be told of it, in words
    weights: Mapping[str, Number]  # reward name -> its weight in the trained reward
    team: Any  # the processes that share each update (`learners.pieces.Team`), None where it is this one alone

    @property
    def models(self) -> Mapping[str, Model]: ...
    def phase(self, *name: object, root: bool = False) -> ContextManager[None]: ...  # within the one at hand, or `root`
    def rng(self, *key: object) -> torch.Generator: ...  # a named stream of this phase of the step; same key, same bits
    def noise(self, batch: Batch, name: str) -> Noise: ...  # per row of the whole optimiser batch
    def at(self, number: Number) -> float: ...  # a schedule's value now
    def encode(self, prompt: Payload, role: str = "policy") -> Payload: ...  # text -> token ids; other payloads as is
    def encode_text(self, text: Payload, role: str = "policy") -> Payload: ...  # the same of what goes on within a row
    def encode_answer(self, prompt: Payload, answer: Payload, role: str = "policy") -> Payload: ...  # and what ends it
    def encode_turn(self, said: Payload, prompt: Payload, role: str = "policy", last: int = -1) -> Payload: ...
    def text(self, ids: Payload, role: str = "policy") -> str: ...
    def tell(self, event: Event) -> None: ...
    def charge(self, what: str, amount: float) -> None: ...  # to the ledger
    def record_failure(self, what: str, error: BaseException, whose: str = "") -> None: ...  # count it, and show it
    def clock(self) -> float: ...  # seconds; virtual where the engine's time is
    def background(self, key: str, coroutine: Coroutine[Any, Any, T]) -> Job[T]:
        """Start work beside training (a call of a model or a judge), or return the pending job of that key.

        A job is pending until its result is taken. The result is plain data, which is saved. A component needs
        `restart(ctx)` to start again, in a resumed run and under the same key, the work it was waiting for; in virtual
        time it ends when it would have ended. The end of a stage drops the jobs that are left."""
        ...

    def poll_rollouts(self) -> None: ...  # in a long computation: let what is in flight go on
    def score(self, batch: Batch, needs: Sequence[Need]) -> Batch: ...  # one no-grad forward a role
    async def probe(self, requests: Sequence[Request], *, tag: str) -> Batch: ...  # graded, charged, never trained on
    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T: ...  # to its end, from outside of any coroutine
    async def grade(self, trajectories: Sequence[Trajectory], until: str = "") -> list[Trajectory]:
        """Grade trajectories by the run's task and rewards, each of which is called once.

        With `until`, call only as many as one reward of that name needs; the run calls the others on what the rollout
        returns."""
        ...

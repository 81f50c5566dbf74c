"""What a component may ask of a run (the `Ctx` port): named random streams, schedules, models, text, the ledger."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch

from shuhari.batch import Batch
from shuhari.config.stage import Components
from shuhari.data import Array, Number, Payload, Ramp, Request, Sampling, Trajectory, code, copy_with, nearest
from shuhari.engines.clock import VirtualLoop, new_loop
from shuhari.events import Event
from shuhari.kernel.abilities import explain_misfit
from shuhari.kernel.noise import CounterNoise, mix
from shuhari.kernel.profile import spanned
from shuhari.kernel.state import walk
from shuhari.learners.pieces import Team
from shuhari.loop import collect
from shuhari.loop.flight import PATIENCE, InFlight
from shuhari.loop.jobs import Running
from shuhari.needs import Need, gather, role_model
from shuhari.ports import (
    CURRENT_GROUP,
    REPLAYING,
    AsyncEngine,
    Durations,
    Engine,
    Model,
    Reward,
    Rollout,
    Task,
    VectorRollout,
    ability,
    is_text,
)

T = TypeVar("T")


class Context:
    """One run's services. Everything random depends on `seed`, the step, and a name."""

    def __init__(self, seed: int, task: Task, engine: Engine, tokens: int | None = None, threads: int = 0) -> None:
        self._before = torch.get_num_threads()
        self.threads = threads or self._before
        self.set_threads()
        self.seed, self.task, self.engine, self.tokens = seed, task, engine, tokens
        self.models: dict[str, Model] = {}
        self.step, self.version = 0, 0
        self.count = 0.0
        self.within: tuple[object, ...] = ()  # the names of the phases that stand, see `phase`
        self.ledger: dict[str, float] = {}
        self.next_row = self.next_ticket = 0
        self.rollout: Any = None  # a Rollout, or one of lanes
        self.held: list[Any] = []  # rollouts that are open, and rewards: what is closed with the run
        self._served: Engine | None = None  # the engine that was opened last
        self.curriculum: Any = None  # of the stage
        self.rewards: Mapping[str, Reward] = {}
        self.weights: Mapping[str, Number] = {}
        self.reward_names: set[str] = set()  # all that was ever graded: one of these that is missing is ungraded
        self.tested_names: set[str] = set()  # the same of evaluations on a task of their own
        self.apart = False  # whether the task is one that the run is not trained on
        self.n, self.sampling = 1, Sampling()
        self.groups: list[list[Trajectory]] = []  # what this step collected, for those who want to look
        self.latest: list[list[Trajectory]] = []  # of these, the last round's
        self.seen: list[Batch] = []  # the batches of this step, as transforms left them, where groups are collected
        self.problems: list[str] = []  # what went wrong in rollouts and graders of this step, first messages
        self.failed: Callable[[str, BaseException], object] = lambda what, error: None  # told first; it may raise
        self.tell: Callable[[Event], None] = lambda event: None
        self.clock: Callable[[], float] = lambda: self.loop.time()  # virtual where time is
        self.in_flight = InFlight(self)
        self.muted = False  # while what was spent already is asked for again
        self.name = ""  # of the stage
        self.team: Team | None = None  # the processes that share updates, where there are several
        self.began = 0.0  # the time at which the step did
        self.breath = time.monotonic()  # when what is in flight last had its turn
        self._loop: asyncio.AbstractEventLoop | None = None  # one for the run's life: asyncio.run a step is slow
        self.crew: Any = None  # workers elsewhere, which play groups (`distributed.crew`)
        self._tag: ContextVar[str] = ContextVar("tag", default="")  # of the coroutine that spends

    def play(self, stage: Components) -> None:
        """Serve the components of a stage from now on."""
        self.name, self.task, self.engine, self.tokens = stage.name, stage.task, stage.engine, stage.tokens
        self.curriculum, self.rollout, self.n, self.sampling = stage.curriculum, stage.rollout, stage.n, stage.sampling
        self.rewards, self.weights = stage.rewards, stage.weights

    def set_threads(self) -> None:
        """Torch's threads as this run has them: another run in the process may have set its own since."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)

    # ---------------------------------------------------------------- randomness and schedules

    def key(self, *name: object) -> int:
        """The 63-bit number of a named stream, the same at every step."""
        return code(self.seed, *name)

    def rng(self, *name: object) -> torch.Generator:
        """The generator of a named stream in this phase of this step (a round of collection, a draw, an optimiser
        batch): the same name in another one is another stream. Of a group in flight it is that of the group: when it
        runs depends on the others."""
        place: tuple[object, ...] = (asker,) if (asker := CURRENT_GROUP.get()) else (self.step, code(*self.within))
        return torch.Generator().manual_seed(code(self.seed, *place, *name))

    def noise(self, batch: Batch, name: str) -> CounterNoise:
        """Noise a row of the batch at hand, in this phase of this step: the same numbers however the batch is cut into
        micro-batches."""
        row = batch["_row"] if "_row" in batch else torch.arange(len(batch))
        place: tuple[object, ...] = (asker, name) if (asker := CURRENT_GROUP.get()) else (self.step, name, *self.within)
        return CounterNoise(mix(np.uint64(code(self.seed, *place)) + _row_keys(row)))

    def phase(self, *name: object, root: bool = False) -> _Phase:
        """What is done inside is a phase of the step with random streams of its own, under `name` within the phase that
        stands; `root`: under `name` alone."""
        return _Phase(self, name, root)

    def at(self, number: Number) -> float:
        """A number, or a schedule's value at this step of the stage."""
        return number(self.count) if isinstance(number, Ramp) else number

    # ---------------------------------------------------------------- text, scores, costs

    def encode(self, prompt: Payload, role: str = "policy") -> Payload:
        """A string or messages as the token ids of the role's model; any other payload as it is."""
        text = isinstance(prompt, str) or (
            isinstance(prompt, tuple) and all(isinstance(m, Mapping) for m in prompt) and prompt
        )
        model = role_model(self.models, role)
        if not text:
            return prompt
        if not is_text(model):
            raise TypeError(f"the model of role {role!r} reads no text, but the prompt is {str(prompt)[:60]!r}")
        return model.encode(prompt)

    def text(self, ids: Payload, role: str = "policy") -> str:
        """Token ids of the role's model as text."""
        return role_model(self.models, role).decode(ids)

    def score(self, batch: Batch, needs: Sequence[Need]) -> Batch:
        """With the columns of `needs` that are missing: one no-grad forward a role."""
        return gather(batch, needs, self.models, self.tokens)

    def note_batch(self, batch: Batch) -> Batch:
        """The batch, remembered to the end of the step for what the store keeps of its groups."""
        if self.groups:
            self.seen.append(batch)
        return batch

    @property
    def served(self) -> bool:
        """Whether the engine has the models of some version."""
        return self.engine is self._served

    @spanned("sync")
    def serve(self) -> None:
        """Give the engine the models as they are now."""
        if not self.served:
            if self._served is not None:  # of another stage
                ability(self._served, "close")()
            ability(self.engine, "open")(self.seed, self.charge)
            self._served = self.engine
        self.engine.sync(self.models, self.version)
        if self.crew is not None:
            self.crew.sync(self)

    def charge(self, what: str, amount: float) -> None:
        """To the ledger, under the tag of what goes on (probes and evaluation are paid for, and apart)."""
        if not (self.muted or REPLAYING.get()):
            what = self._tag.get() + what
            self.ledger[what] = self.ledger.get(what, 0) + amount

    @contextmanager
    def charging_to(self, tag: str) -> Iterator[None]:
        """Charge everything inside under `<tag>/`, within the tag that stands already."""
        before = self._tag.set(f"{self._tag.get()}{tag}/")
        try:
            yield
        finally:
            self._tag.reset(before)

    # ---------------------------------------------------------------- collecting

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the run's life, or of the stages whose time is of one kind."""
        if self._loop is not None and isinstance(self._loop, VirtualLoop) != (self.virtual is not None):
            self._loop.close()
            self._loop = None
        if self._loop is None:
            self._loop = new_loop(self.virtual)
        return self._loop

    @property
    def virtual(self) -> Durations | None:
        """The modelled durations, where the engine has some."""
        return ability(self.engine, "virtual")

    @property
    def staleness(self) -> int:
        """How many versions of the weights after its beginning a group may be learnt from; above 0 groups stay in
        flight over steps."""
        return ability(self.engine, "staleness")

    @property
    def async_engine(self) -> AsyncEngine | None:
        """The engine, where groups stay in flight over steps: then it keeps the answers that it gave them."""
        return self.engine if self.staleness else None  # type: ignore[return-value]

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end. Where a loop runs in this thread already, as in a notebook, in another thread."""
        if asyncio._get_running_loop() is None:
            return self.loop.run_until_complete(coroutine)
        with ThreadPoolExecutor(1) as beside:
            return beside.submit(copy_context().run, self.loop.run_until_complete, coroutine).result()

    def poll_rollouts(self) -> None:
        """In a long computation, now and then: what is in flight goes on for as long as was computed since."""
        if (self.in_flight.groups or self.in_flight.jobs.running) and self.virtual is None:
            now = time.monotonic()
            self.wait(self.in_flight.go(now - self.breath))
            self.breath = time.monotonic()

    def background(self, key: str, coroutine: Coroutine[Any, Any, T]) -> Running:
        """Begin a job beside training, or the one of that key that is there. See `Ctx`."""
        return self.in_flight.jobs.begin(key, coroutine)

    def elapse(self) -> None:
        """Let the virtual time of an update pass, if time is virtual, and charge that of the step; evaluation, which is
        no part of a method, lies between two steps."""
        if self.virtual is not None:
            self.wait(self.in_flight.elapse(self.virtual.train))
            self.charge("virtual_seconds", self.clock() - self.began)

    def open(self, rollouts: Mapping[str, tuple[Any, Task]], rewards: Iterable[Reward]) -> None:
        """Open rollouts, name -> (rollout, what it plays), and those in their fields where there is something to open
        (lanes of environments), each once. They and the rewards are closed with the run."""
        for reward in rewards:
            self._hold(reward)
        part: Rollout | VectorRollout
        for name, (rollout, task) in rollouts.items():
            parts = ((f"{name}/{at}", x) for at, x in walk(rollout) if not explain_misfit("rollout", x))
            for place, part in ((name, rollout), *parts):
                if self._hold(part):
                    ability(part, "open")(task, self.key("rollout", place))

    def _hold(self, component: Any) -> bool:
        """Remember what is to be closed; whether it is new."""
        new = all(component is not held for held in self.held)
        self.held += [component] if new else []
        return new

    def close(self) -> None:
        """Let go of what a run holds, and leave torch's threads as they were."""
        self.in_flight.drop()
        for reward in self.rewards.values():  # of a context that nothing was opened in
            self._hold(reward)
        for held in (*self.held, *(x for x in (self.team, self._served) if x is not None)):
            ability(held, "close")()
        if self._loop is not None:
            if left := asyncio.all_tasks(self._loop):  # of what was interrupted
                for task in left:
                    task.cancel()
                self.wait(asyncio.wait(left, timeout=PATIENCE))
            self._loop.close()
        torch.set_num_threads(self._before)

    def fork(
        self, *phase: object, rollout: Rollout | None = None, task: Task | None = None, ticket: int = 0
    ) -> Context:
        """The run as something beside its training sees it (an evaluation): the same models, engine, ledger and clock;
        maybe another rollout and task (with names of its own for what is graded), and row ids, a phase and tickets
        (from `ticket` on) of its own. What is in flight goes on with the run's."""
        _ = self.loop  # made, so that both have one
        other = copy.copy(self)
        other.within = phase
        other.rollout, other.task, other.next_ticket = rollout or self.rollout, task or self.task, ticket
        if task is not None:
            other.reward_names, other.apart = self.tested_names, True
        return other

    async def probe(self, requests: Sequence[Request], *, tag: str) -> Batch:
        """Roll out and grade beside the training data; charged under `tag`, never trained on."""
        with self.charging_to(tag):
            return await collect.collect_groups(requests, self, tag=tag)

    async def grade(self, trajectories: Sequence[Trajectory], until: str = "") -> list[Trajectory]:
        """By the run's own task and rewards, each asked once; see `collect.grade_group`."""
        return await collect.grade_group(trajectories, self, until)

    def stamp_request(self, request: Request, tag: str) -> Request:
        """With its key, and with the run's n and sampling where the request leaves them open. A mapping in place of
        its sampling is laid over the run's; ValueError for a field that sampling has not."""
        ticket, self.next_ticket = self.next_ticket, self.next_ticket + 1
        key = f"{tag}{request.problem.id}#{ticket}"
        sampling: Any = self.sampling if request.sampling is None else request.sampling
        if isinstance(sampling, Mapping):
            known = [f.name for f in fields(Sampling)]
            if unknown := [name for name in sampling if name not in known]:
                raise ValueError(f"a request's sampling has no field {unknown[0]!r}; {nearest(unknown[0], known)}")
            sampling = replace(self.sampling, **sampling)
        return copy_with(request, key=key, n=request.n or self.n, sampling=self.now(sampling))

    def now(self, sampling: Sampling) -> Sampling:
        """With schedules over steps resolved; a temperature ramp counts decisions and stays."""
        return replace(sampling, epsilon=self.at(sampling.epsilon)) if isinstance(sampling.epsilon, Ramp) else sampling

    def record_failure(self, what: str, error: BaseException, whose: str = "") -> None:
        """Count a failure of user code and keep its first messages: it is shown, and never becomes a reward of 0."""
        self.failed(what, error)
        self.charge(what, 1)
        place = "; ".join(vars(error).get("__notes__", ()))  # whose environment, which step
        message = f"{what}{f' ({whose})' if whose else ''}: {type(error).__name__}: {error}"
        message += f" ({place})" if place else ""
        if not (self.muted or REPLAYING.get()) and len(self.problems) < 5 and message not in self.problems:
            self.problems.append(message)


class _Phase:
    """A phase while it stands. No generator: some stand within each optimiser step, however small its nets."""

    __slots__ = ("before", "ctx", "name", "root")

    def __init__(self, ctx: Context, name: tuple[object, ...], root: bool) -> None:
        self.ctx, self.name, self.root = ctx, name, root

    def __enter__(self) -> None:
        self.before = self.ctx.within
        self.ctx.within = self.name if self.root else (*self.before, *self.name)

    def __exit__(self, *_: object) -> None:
        self.ctx.within = self.before


@lru_cache(8)
def _row_keys(row: torch.Tensor) -> Array:
    """Of a tensor, not of its values: whole optimiser batches of a size share one."""
    return mix(row.numpy().astype(np.uint64))

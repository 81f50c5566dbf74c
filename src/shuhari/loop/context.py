"""The services of a run for its components (the `Ctx` port), put together of parts that know nothing of each other:
random streams and schedules (`randomness`), costs and messages (`accounts`), the event loop (`eventloop`), what is
opened and closed (`closing`), text (`wording`), groups in flight (`flight`). This module has the components of the
stage, and collection."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager as ContextManager
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar

import torch

from shuhari.batch import Batch
from shuhari.config.stage import Components
from shuhari.data import Number, Payload, Request, Sampling, Trajectory, copy_with, nearest
from shuhari.events import Event
from shuhari.kernel.noise import CounterNoise
from shuhari.kernel.profile import spanned
from shuhari.learners.pieces import Team
from shuhari.loop import collect, wording
from shuhari.loop.accounts import Accounts
from shuhari.loop.closing import Opened
from shuhari.loop.eventloop import EventLoop, run_in
from shuhari.loop.flight import InFlight
from shuhari.loop.jobs import Running
from shuhari.loop.randomness import Phase, Streams
from shuhari.loop.reward_names import Names
from shuhari.needs import Need, gather
from shuhari.ports import AsyncEngine, Durations, Engine, Model, Reward, Rollout, Task, ability

T = TypeVar("T")


class Of(Generic[T]):
    """An attribute of a part of the context that is read and set as one of the context's own."""

    def __init__(self, part: str) -> None:
        self.part = part

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, ctx: Any, owner: type) -> T:
        value: T = getattr(getattr(ctx, self.part), self.name)
        return value

    def __set__(self, ctx: Any, value: T) -> None:
        setattr(getattr(ctx, self.part), self.name, value)


class Context:
    """One run's services. Everything random depends on `seed`, the step, and a name."""

    seed = Of[int]("streams")
    step = Of[int]("streams")
    count = Of[float]("streams")  # where schedules stand: the step of the stage
    within = Of[tuple[object, ...]]("streams")  # the names of the phases that stand, see `phase`
    ledger = Of[dict[str, float]]("accounts")
    problems = Of[list[str]]("accounts")  # what went wrong in rollouts and graders of this step, first messages
    failed = Of[Callable[[str, BaseException], object]]("accounts")  # told of each first; it may raise it
    muted = Of[bool]("accounts")  # while what was spent already is asked for again

    def __init__(self, seed: int, task: Task, engine: Engine, tokens: int | None = None, threads: int = 0) -> None:
        self._before = torch.get_num_threads()
        self.threads = threads or self._before
        self.set_threads()
        self.streams, self.accounts, self.opened, self.eventloop = Streams(seed), Accounts(), Opened(), EventLoop()
        self.in_flight = InFlight(self)
        self.tell: Callable[[Event], None] = lambda event: None
        self.team: Team | None = None  # the processes that share updates, where there are several
        self.crew: Any = None  # workers elsewhere, which play groups (`distributed.crew`)
        self.refuse: Callable[[str], BaseException] | None = None  # at a worker: the error at what only the run has
        self.told: set[str] | None = set()  # of the data, to whom it concerns; None: nothing is to be told
        self.began = 0.0  # the time at which the step did
        # the components of the stage
        self.name = ""
        self.task, self.engine, self.tokens = task, engine, tokens
        self.models: dict[str, Model] = {}
        self.version = 0  # of their weights
        self.rollout: Any = None  # a Rollout, or one of lanes
        self.curriculum: Any = None
        self.rewards: Mapping[str, Reward] = {}
        self.weights: Mapping[str, Number] = {}
        self.n, self.sampling = 1, Sampling()
        # collecting
        self.next_row = self.next_ticket = 0
        self.reward_names: Names = {}  # all that was ever paid or graded, and by whom
        self.tested_names: Names = {}  # the same of evaluations on a task of their own
        self.apart = False  # whether the task is one that the run is not trained on
        self.groups: list[list[Trajectory]] = []  # what this step collected, for those who want to look
        self.latest: list[list[Trajectory]] = []  # of these, the last round's
        self.probed: list[list[Trajectory]] | None = None  # graded groups of probes, if somebody wants to look at them
        self.seen: list[Batch] = []  # the batches of this step, as transforms left them, where groups are collected

    def play(self, stage: Components) -> None:
        """Use the components of a stage from now on."""
        self.name, self.task, self.engine, self.tokens = stage.name, stage.task, stage.engine, stage.tokens
        self.curriculum, self.rollout, self.n, self.sampling = stage.curriculum, stage.rollout, stage.n, stage.sampling
        self.rewards, self.weights = stage.rewards, stage.weights

    def fork(
        self,
        *phase: object,
        rollout: Rollout | None = None,
        task: Task | None = None,
        ticket: int = 0,
        accounts: Accounts | None = None,
    ) -> Context:
        """Return the run as seen by something beside its training (an evaluation): the same models, engine, ledger and
        event loop; optionally another rollout and task (with reward names of its own); with its own row ids, phase and
        tickets (from `ticket` on). Groups in flight are the run's. `accounts`: replaces the run's."""
        other = copy.copy(self)
        other.streams, other.accounts = copy.copy(self.streams), accounts or copy.copy(self.accounts)
        other.within = phase
        other.rollout, other.task, other.next_ticket = rollout or self.rollout, task or self.task, ticket
        if task is not None:
            other.reward_names, other.apart = self.tested_names, True
        return other

    def set_threads(self) -> None:
        """Set torch's threads to this run's number: another run in the process may have changed it."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)

    # ---------------------------------------------------------------- randomness, schedules, costs: see the parts

    def key(self, *name: object) -> int:
        """Return the 63-bit number of a named stream, the same at every step."""
        return self.streams.key(*name)

    def rng(self, *name: object) -> torch.Generator:
        """Return the generator of a named stream in this phase of this step (a round of collection, a draw, an
        optimiser batch): the same name in another phase is another stream."""
        return self.streams.rng(*name)

    def noise(self, batch: Batch, name: str) -> CounterNoise:
        """Return noise for each row of the current batch, in this phase of this step: the same numbers however the
        batch is cut into micro-batches."""
        return self.streams.noise(batch, name)

    def phase(self, *name: object, root: bool = False) -> Phase:
        """Give the code inside random streams of its own, under `name` within the current phase, or at the `root`."""
        return self.streams.phase(*name, root=root)

    def at(self, number: Number) -> float:
        """Return a number, or a schedule's value at this step of the stage."""
        return self.streams.at(number)

    def now(self, sampling: Sampling) -> Sampling:
        """Return the sampling with schedules over steps resolved."""
        return self.streams.now(sampling)

    def charge(self, what: str, amount: float) -> None:
        """Add to the ledger, under the current tag."""
        self.accounts.charge(what, amount)

    def charging_to(self, tag: str) -> ContextManager[None]:
        """Charge everything inside under `<tag>/`."""
        return self.accounts.charging_to(tag)

    def record_failure(self, what: str, error: BaseException, whose: str = "") -> None:
        """Count a failure of user code and keep its first messages: it is reported, and never becomes a reward of 0."""
        self.accounts.record_failure(what, error, whose)

    # ---------------------------------------------------------------- text and scores

    def encode(self, prompt: Payload, role: str = "policy") -> Payload:
        """Convert a string or messages to token ids of the role's model; return any other payload as it is."""
        return wording.encode(prompt, self.models, role)

    def encode_text(self, text: Payload, role: str = "policy") -> Payload:
        """Convert a text that continues a row to token ids of the role's model; return any other payload as it is."""
        return wording.encode_text(text, self.models, role)

    def encode_answer(self, prompt: Payload, answer: Payload, role: str = "policy") -> Payload:
        """Convert an answer to a prompt to token ids, with the token that ends it (a chat's end of turn)."""
        return wording.encode_answer(prompt, answer, self.models, role)

    def encode_turn(self, said: Payload, prompt: Payload, role: str = "policy", last: int = -1) -> Payload:
        """Convert what the role reads next, after its own turn in a row that began with `prompt`, to token ids. last:
        the last token of that turn."""
        return wording.encode_turn(said, prompt, last, self.models, role)

    def text(self, ids: Payload, role: str = "policy") -> str:
        """Convert token ids of the role's model to text."""
        return wording.decode(ids, self.models, role)

    def score(self, batch: Batch, needs: Sequence[Need]) -> Batch:
        """Return the batch with the missing columns of `needs`: one no-grad forward a role."""
        return gather(batch, needs, self.models, self.tokens)

    # ---------------------------------------------------------------- the engine

    @property
    def served(self) -> bool:
        """Whether the current engine has been given the models."""
        return self.engine is self.opened.engine

    @spanned("sync")
    def serve(self) -> None:
        """Give the engine the current models."""
        self.opened.open_engine(self.engine, self.seed, self.charge)
        self.engine.sync(self.models, self.version)
        if self.crew is not None:
            self.crew.sync(self)

    @property
    def virtual(self) -> Durations | None:
        """The modelled durations, if the engine has some."""
        return ability(self.engine, "virtual")

    @property
    def staleness(self) -> int:
        """Largest number of versions that the weights may have moved on since a group began, for it to be trained on;
        above 0, groups stay in flight across steps."""
        return ability(self.engine, "staleness")

    @property
    def async_engine(self) -> AsyncEngine | None:
        """The engine, if groups stay in flight across steps: it then keeps the answers that it gave them."""
        return self.engine if self.staleness else None  # type: ignore[return-value]

    # ---------------------------------------------------------------- time, and what goes on beside training

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the whole run, or of its stages with the same kind of time."""
        return self.eventloop.get(self.virtual)

    def clock(self) -> float:
        """Return seconds; virtual ones if time is virtual."""
        return self.loop.time()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, in another thread if a loop already runs in this one, as in a notebook."""
        return run_in(self.loop, coroutine)

    def poll_rollouts(self) -> None:
        """Let groups in flight continue for as long as was computed since; called now and then in a long computation.
        """
        self.in_flight.poll()

    def background(self, key: str, coroutine: Coroutine[Any, Any, T]) -> Running:
        """Begin a job beside training, or return the existing one of that key. See `Ctx`."""
        if self.refuse is not None:
            coroutine.close()
            raise self.refuse("background")
        return self.in_flight.jobs.begin(key, coroutine)

    def elapse(self) -> None:
        """Let the virtual time of an update pass, if time is virtual, and charge the step's virtual time; evaluation,
        which is no part of a method, happens between two steps."""
        if self.virtual is not None:
            self.wait(self.in_flight.elapse(self.virtual.train))
            self.charge("virtual_seconds", self.clock() - self.began)

    def open(self, rollouts: Mapping[str, tuple[Any, Task]], rewards: Iterable[Reward]) -> None:
        """Open rollouts, name -> (rollout, its task), each once. They and the rewards are closed with the run."""
        self.opened.open(rollouts, rewards, lambda place: self.key("rollout", place))

    def close(self) -> None:
        """Close what a run holds, and restore torch's threads."""
        self.in_flight.drop()
        for reward in self.rewards.values():  # of a context that nothing was opened in
            self.opened.hold(reward)
        self.opened.close(self.team)
        self.eventloop.close()
        torch.set_num_threads(self._before)

    # ---------------------------------------------------------------- collecting

    async def probe(self, requests: Sequence[Request], *, tag: str) -> Batch:
        """Roll out and grade beside the training data; charged under `tag`, never trained on."""
        if self.refuse is not None:
            raise self.refuse("probe")
        with self.charging_to(tag):
            return await collect.collect_groups(requests, self, tag=tag)

    async def grade(self, trajectories: Sequence[Trajectory], until: str = "") -> list[Trajectory]:
        """Grade by the run's own task and rewards, each at most once; see `collect.grade_group`."""
        return await collect.grade_group(trajectories, self, until)

    def note_batch(self, batch: Batch) -> Batch:
        """Return the batch, and remember it to the end of the step for the groups that the store keeps."""
        if self.groups:
            self.seen.append(batch)
        return batch

    def stamp_request(self, request: Request, tag: str) -> Request:
        """Return the request with its key, and with the run's n and sampling if it leaves them open. A mapping as its
        sampling overrides fields of the run's. Raises ValueError for a field that sampling does not have."""
        if self.refuse is not None:
            raise self.refuse("stamp_request")
        ticket, self.next_ticket = self.next_ticket, self.next_ticket + 1
        key = f"{tag}{request.problem.id}#{ticket}"
        sampling: Any = self.sampling if request.sampling is None else request.sampling
        if isinstance(sampling, Mapping):
            known = [f.name for f in fields(Sampling)]
            if unknown := [name for name in sampling if name not in known]:
                raise ValueError(f"a request's sampling has no field {unknown[0]!r}; {nearest(unknown[0], known)}")
            sampling = replace(self.sampling, **sampling)
        return copy_with(request, key=key, n=request.n or self.n, sampling=self.now(sampling))

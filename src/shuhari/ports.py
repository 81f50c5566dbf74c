"""The ports: what a component may be, and the little that it may ask of a run. Nothing here is implementation.

Components meet in columns of a batch, models by role, and events. Any may have `observe(event)`, told in commit order,
and keeps its memory in `state` (not an init field), tensors and JSON, for the store. A reward may have `close()`.

Axes: `B` rows, `K` positions of a row, `P` links. What models answer (`Dist`, `Need`, `Trace`) is in `needs.py`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from collections.abc import Generator as Reports
from contextlib import AbstractContextManager as ContextManager
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from torch import Generator, Tensor, nn

from shuhari.answers import Answers
from shuhari.batch import Batch
from shuhari.data import EMPTY, Array, Info, Number, Payload, Problem, Request, Sampling, Step, Trajectory
from shuhari.events import Event, Updated
from shuhari.needs import Dist, Functional, Need, Noise, Trace, Traces

T = TypeVar("T")
__all__ = ["Dist", "Functional", "Need", "Noise", "Trace", "Traces"]  # the rest is defined here

# ---------------------------------------------------------------- models


@runtime_checkable
class Model(Protocol):
    """A function from a batch to decisions. `build` makes `module` (with the global torch seed set for it)."""

    @property
    def module(self) -> nn.Module: ...
    def build(self, task: Task) -> None: ...
    def __call__(self, batch: Batch) -> Any: ...  # a Dist


class Policy(Model, Protocol):
    """A model that acts. `kind`: its log-probability is exact, that of a denoising chain, or a bound."""

    kind: Literal["exact", "chain", "bound"]

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Sequence[Trace]: ...  # row i: noise row i


# ---------------------------------------------------------------- where data comes from


class Source(Protocol):
    """Problems by index; `len` is None where there is no end."""

    def __getitem__(self, index: int) -> Problem: ...
    def size(self) -> int | None: ...


class Task(Protocol):
    """What is to be solved. `grade` names its rewards; `score` in [0, 1] is the task's own measure. `spaces` tells
    models of fixed size what they see and do (Gymnasium spaces; None for text)."""

    def problems(self, split: str) -> Source: ...
    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any] | None: ...
    def environment(self, problem: Problem) -> Environment | None: ...
    def spaces(self) -> tuple[Any, Any] | None: ...  # (observation, action)


class Listing(Protocol):
    """What a Task may do beside: list a problem's answers, so that a metric can score them all (`metrics/exact`).
    `grade` must agree. None: they cannot be listed."""

    def answers(self, problem: Problem) -> Answers | None: ...


class Environment(Protocol):
    """One episode's world. `reset` and `step` may be coroutine functions; `snapshot` is a payload that `restore` takes
    back. An observation that is a `Whole` takes the place of a context of text.

    Optional: `bind(ctx, key)`, before `reset`: whom to ask for models and noise, and what to name these by (`key` is
    this episode's own); `takes(trace)`: what `step` is to get of a decision; `close()`, when the episode is over."""

    def reset(self, problem: Problem) -> Any: ...  # the first observation
    def step(self, action: Any) -> Any: ...  # (observation, rewards by name, Status | None)
    def snapshot(self) -> Payload: ...
    def restore(self, snapshot: Payload) -> Payload: ...


class Curriculum(Protocol):
    """Any may have `report() -> Info`: numbers for the step's report, asked once a step."""

    async def select(self, n: int, ctx: Ctx) -> list[Request]: ...  # n groups; may probe


class Predictor(Protocol):
    """How often the policy as it is solves each of Q problems, in [0, 1]: (the rates to choose by, which may be random
    draws; the rates expected), [Q] each. May probe."""

    async def predict(self, problems: Sequence[Problem], ctx: Ctx) -> tuple[Tensor, Tensor]: ...


class Rollout(Protocol):
    """One group of episodes: the same for training, evaluation and inference. `accepts`: setting -> default."""

    accepts: Mapping[str, Any]

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]: ...


class Environments(Protocol):
    """Whose environment an episode is played in, where that is not the task's: a learned one, or now one, now the
    other. None: there is none, and the policy is asked once."""

    def environment(self, request: Request, ctx: Ctx) -> Environment | None: ...


class Window(Protocol):
    """What whoever is at turn sees of an episode: the context of the next decision. It may `ask` first (a summary)."""

    async def __call__(self, play: Play) -> Payload: ...


class Play(Protocol):
    """An episode as a window sees it (`rollouts.playing`). `start`: what the context began with. `turns`: (action,
    observation) of each turn since then, token ids. `context`: all of it, or what a window has made of it, with what
    came after."""

    request: Request
    ctx: Ctx
    start: Payload
    context: Payload
    turns: list[tuple[Array, Array]]
    steps: list[Step]

    @property
    def role(self) -> str: ...  # whose turn it is
    async def ask(self, context: Payload) -> Trace: ...  # a decision that no environment gets, learnt from as any other


class VectorRollout(Protocol):
    """Lanes of environments that live on across calls; writes columns directly."""

    def collect(self, n: int, ctx: Ctx) -> Batch: ...  # at least n decisions


class Reward(Protocol):
    async def grade(
        self, group: Sequence[Trajectory], ctx: Ctx
    ) -> Sequence[Mapping[str, Any] | None]: ...  # one a leaf


class Engine(Protocol):
    """Serves every role's policy. Calls that wait at the same time share one forward."""

    async def sample(
        self, role: str, context: Any, sampling: Sampling, n: int = 1, *, key: Sequence[object]
    ) -> list[Trace]: ...
    async def score(self, role: str, context: Any, action: Any, names: Sequence[str]) -> Mapping[str, Array]: ...
    def sync(self, models: Mapping[str, Model], version: int) -> None: ...


# ---------------------------------------------------------------- what is learnt from it


class Buffer(Protocol):
    """Fills by `observe(Collected)`; `short` is what it still wants (groups; decisions where a VectorRollout feeds
    it); `draw` yields the batches to learn from and stamps `weight/<its stream>`."""

    def short(self) -> int: ...
    def draw(self, ctx: Ctx) -> Iterator[Batch]: ...


class Recording(Protocol):
    """Episodes that were recorded, or are played for the purpose: `read` gives whole columns in episode order, each
    episode's decisions and then its closing row (`buffers.recording.columns_of`); the same `seed`, the same columns."""

    def read(self, task: Task, seed: int) -> Mapping[str, Tensor]: ...


class Transform(Protocol):
    """Whole batch in, columns added, no gradient. Filters set weights to 0; they never delete rows."""

    @property
    def needs(self) -> tuple[Need, ...]: ...
    def __call__(self, batch: Batch, ctx: Ctx) -> Batch: ...


class Objective(Protocol):
    """An unreduced loss [B, K], [B], or [P] of links; 0-d only where it couples the batch. Info values may be unreduced
    too: they are averaged over decisions. `couples`: whether a row's loss depends on other rows (then it reads
    columns only, and gets the whole optimiser batch). An objective or transform that calls models itself may name their
    `roles`, to be missed before the first step."""

    @property
    def needs(self) -> tuple[Need, ...]: ...
    @property
    def couples(self) -> Literal["row", "batch"]: ...
    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]: ...


class Evaluate(Protocol):
    """The loss of one optimiser batch, as an optimiser may ask for it; each call is a fresh evaluation."""

    def backward(self) -> Info: ...  # fills .grad of the part's parameters
    def gradients(self) -> dict[str, Tensor]: ...  # term -> flat gradient
    def values(self) -> dict[str, float]: ...  # term -> loss, without gradient
    def hvp(self, term: str, vector: Tensor) -> Tensor: ...  # Hessian-vector product of one term


class Optimiser(Protocol):
    def bind(self, params: Sequence[nn.Parameter]) -> None: ...
    def step(self, evaluate: Evaluate, at: float) -> Info: ...  # at: the count that schedules stand at


class Learner(Protocol):
    buffer: Buffer
    transforms: Mapping[str, Transform]

    @property
    def needs(self) -> Sequence[Need]: ...  # scored before the update, with those of the transforms
    def bind(self, models: Mapping[str, Model]) -> None: ...  # as each of its stages starts; idempotent
    def update(self, batch: Batch, ctx: Ctx) -> Updated: ...


class Follow(Protocol):
    """Moves the weights of one role after another's."""

    on: Literal["update", "step", "stage", "plateau"]

    def __call__(self, models: Mapping[str, Model], event: Event) -> None: ...


class Metric(Protocol):
    """Numbers of an evaluation that no play gives, about models, answers or weights; `ctx.task` is what is evaluated.
    It is charged under `evaluate/`, draws under its own name, and may name the `roles` that it asks."""

    def __call__(self, ctx: Ctx) -> Mapping[str, float]: ...


class Study(Protocol):
    """Drives whole runs: populations, transfer, search, fits. Yields the reports of its runs as they come, and after
    each piece of its own progress a row of numbers, which is a step of the study. A study that is resumed starts over:
    its runs are where they were, and what it yields again must be what it was."""

    def __call__(self, runs: Runs) -> Iterator[Info]: ...


class Runs(Protocol):
    """What a study may ask. `train` goes on with the run `name` of the study's recipe under `settings` (dotted keys) to
    its end, yields its reports and returns its summary; `evaluate` gives the held-out scores of its weights under
    further settings. Both are charged to the study."""

    seed: int

    def train(self, name: str, settings: Mapping[str, Any] = EMPTY) -> Reports[Info, None, Mapping[str, Any]]: ...
    def evaluate(self, name: str, settings: Mapping[str, Any] = EMPTY) -> Mapping[str, float]: ...


class Analysis(Protocol):
    """What a paper shows without training a model: an exact identity, a simulation. Named numbers of a seed."""

    def __call__(self, seed: int) -> Mapping[str, float]: ...


# ---------------------------------------------------------------- what a component may ask


class Ctx(Protocol):
    """The run, as components see it."""

    step: int
    count: float  # where schedules stand: the step of the stage
    version: int
    engine: Engine
    task: Task
    ledger: dict[str, float]
    weights: Mapping[str, Number]  # reward name -> its weight in the trained reward
    sampling: Sampling  # the run's

    @property
    def models(self) -> Mapping[str, Model]: ...
    def phase(self, *name: object, root: bool = False) -> ContextManager[None]: ...  # within the one at hand, or `root`
    def rng(self, *key: object) -> Generator: ...  # a named stream of this phase of the step; same key, same bits
    def noise(self, batch: Batch, name: str) -> Noise: ...  # per row of the whole optimiser batch
    def at(self, number: Number) -> float: ...  # a schedule's value now
    def encode(self, prompt: Payload, role: str = "policy") -> Payload: ...  # text -> token ids; other payloads as is
    def text(self, ids: Payload, role: str = "policy") -> str: ...
    def tell(self, event: Event) -> None: ...
    def charge(self, what: str, amount: float) -> None: ...  # to the ledger
    def complain(self, what: str, error: BaseException, whose: str = "") -> None: ...  # count it, and show it
    def clock(self) -> float: ...  # seconds; virtual where the engine's time is
    def breathe(self) -> None: ...  # in a long computation: let what is in flight go on
    def score(self, batch: Batch, needs: Sequence[Need]) -> Batch: ...  # one no-grad forward a role
    async def probe(self, requests: Sequence[Request], *, tag: str) -> Batch: ...  # graded, charged, never trained on
    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T: ...  # to its end, from outside of any coroutine
    async def grade(self, trajectories: Sequence[Trajectory], until: str = "") -> list[Trajectory]:
        """By the run's task and rewards, none of which is asked twice; with `until` by as many as are needed for one
        reward of that name, and the run asks the others of what the rollout returns."""
        ...

"""Ports of how episodes come about: which problems, how they are played, what they are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeGuard

from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Array, Info, Payload, Problem, Request, Step, Trajectory
from shuhari.kernel.abilities import ability
from shuhari.needs import Trace

if TYPE_CHECKING:
    from shuhari.ports.context import Ctx
    from shuhari.ports.tasks import Environment, Task


class Curriculum(Protocol):
    """Which problems come next. Optional: `Reports`."""

    async def select(self, n: int, ctx: Ctx) -> list[Request]: ...  # n groups; may probe


class Predictor(Protocol):
    """How often the policy as it is solves each of Q problems, in [0, 1]: (the rates to choose by, which may be random
    draws; the rates expected), [Q] each. May probe."""

    async def predict(self, problems: Sequence[Problem], ctx: Ctx) -> tuple[Tensor, Tensor]: ...


class Rollout(Protocol):
    """One group of episodes: the same for training, evaluation and inference. `accepts`: setting -> default.
    Optional: `Reports`, `RolloutOpens`, `close`, and what `RolloutAttributes` has; a rollout in a field of another is
    opened and closed by the run, too."""

    accepts: Mapping[str, Any]

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]: ...


class Environments(Protocol):
    """Whose environment an episode is played in, where that is not the task's: a learned one, or now one, now the
    other. None: there is none, and the policy is asked once."""

    def environment(self, request: Request, ctx: Ctx) -> Environment | None: ...


class Window(Protocol):
    """What the role whose turn it is sees of an episode: the context of the next decision. It may `ask` first (a
    summary)."""

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
    """Lanes of environments that live on across calls; writes columns directly. `unit` declares that it is asked for
    decisions, and not for groups of a problem."""

    unit: ClassVar[Literal["decision"]]
    accepts: Mapping[str, Any]

    def open(self, task: Task, seed: int) -> None: ...  # before the first call; once a run
    def collect(self, n: int, ctx: Ctx) -> Batch: ...  # at least n decisions
    def report(self) -> Info: ...
    def close(self) -> None: ...


class Reward(Protocol):
    """What the episodes of a group are worth. Optional: what `RewardAttributes` has; `close`."""

    async def grade(
        self, group: Sequence[Trajectory], ctx: Ctx
    ) -> Sequence[Mapping[str, Any] | None]: ...  # one a leaf


class Metric(Protocol):
    """Numbers of an evaluation beside the scores of episodes: about models, answers or weights. `ctx.task` is what is
    evaluated. It is charged under `evaluate/`, draws under its own name, and may name the `roles` that it asks."""

    def __call__(self, ctx: Ctx) -> Mapping[str, float]: ...


# ---------------------------------------------------------------- what one may have, asked by `shuhari.ports.ability`


class Reports(Protocol):
    """A curriculum or a rollout that has numbers for the step's report; asked once a step."""

    def report(self) -> Info: ...


class RolloutOpens(Protocol):
    """A rollout that prepares something once a run, before its first group."""

    def open(self, task: Task, seed: int) -> None: ...


class Binds(Protocol):
    """An environment that asks models or draws noise: it hears before `reset` whom to ask, and the key of this episode,
    by which it names what it asks."""

    def bind(self, ctx: Ctx, key: Sequence[object]) -> None: ...


class RolloutAttributes(Protocol):
    """Values that a rollout may have: `role` decides; `asks`, whether its lanes ask the curriculum where they begin;
    `unit`, "decision" of a `VectorRollout`; `spreads`, as of an engine: the settings of how work is spread."""

    @property
    def role(self) -> str: ...
    @property
    def asks(self) -> bool: ...
    @property
    def unit(self) -> str | None: ...
    @property
    def spreads(self) -> tuple[str, ...]: ...


class RewardAttributes(Protocol):
    """Values that a reward may have: `counts`, whether it weighs 1 if a recipe gives no weights; `name`, of its grades,
    if that is not the one that it goes by."""

    @property
    def counts(self) -> bool: ...
    @property
    def name(self) -> str: ...


def is_vector(rollout: Any) -> TypeGuard[VectorRollout]:
    """Whether a rollout is asked for decisions, of lanes that live on, and not for groups: it declares so (`unit`)."""
    return bool(ability(rollout, "unit") == "decision")

"""Ports of collection: choosing problems, playing episodes, grading them."""

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
    """A source of the next problems to play. Optional: `Reports`."""

    async def select(self, n: int, ctx: Ctx) -> list[Request]: ...  # n groups; may probe


class Predictor(Protocol):
    """An estimator of how often the current policy solves each of Q problems, in [0, 1]: (the rates to choose by, which
    may be random draws; the expected rates), [Q] each. May probe."""

    async def predict(self, problems: Sequence[Problem], ctx: Ctx) -> tuple[Tensor, Tensor]: ...


class Rollout(Protocol):
    """A way to play one group of episodes, the same for training, evaluation and inference. `accepts`: setting ->
    default. Optional: `Reports`, `RolloutOpens`, `close`, and the members of `RolloutAttributes`. The run also opens
    and closes a rollout that is a field of another."""

    accepts: Mapping[str, Any]

    async def group(self, request: Request, ctx: Ctx) -> list[Trajectory]: ...


class Environments(Protocol):
    """A choice of each episode's environment, if that is not the task's: a learned one, or now one, now the other.
    None: no environment, and the policy is called once."""

    def environment(self, request: Request, ctx: Ctx) -> Environment | None: ...


class Window(Protocol):
    """A builder of the next decision's context from the episode, for the role whose turn it is. It may `ask` first (a
    summary)."""

    async def __call__(self, play: Play) -> Payload: ...


class Play(Protocol):
    """An episode as a window sees it (`rollouts.playing`). `start`: the initial context. `turns`: (action, observation)
    of each turn since then, token ids. `context`: all of it, or what a window has made of it, with what came after."""

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
    """A rollout over lanes of environments that persist across calls; it writes columns directly. `unit` declares that
    it is called for a number of decisions, not for groups of a problem."""

    unit: ClassVar[Literal["decision"]]
    accepts: Mapping[str, Any]

    def open(self, task: Task, seed: int) -> None: ...  # before the first call; once a run
    def collect(self, n: int, ctx: Ctx) -> Batch: ...  # at least n decisions
    def report(self) -> Info: ...
    def close(self) -> None: ...


class Reward(Protocol):
    """A grader of the episodes of a group. Optional: the members of `RewardAttributes`; `close`."""

    async def grade(
        self, group: Sequence[Trajectory], ctx: Ctx
    ) -> Sequence[Mapping[str, Any] | None]: ...  # one a leaf


class Metric(Protocol):
    """Numbers of an evaluation other than episode scores: of models, answers or weights. `ctx.task` is the evaluated
    task. Its cost is charged under `evaluate/`, its random stream has its own name, and it may name the `roles` whose
    models it calls."""

    def __call__(self, ctx: Ctx) -> Mapping[str, float]: ...


# ---------------------------------------------------------------- what one may have, asked by `shuhari.ports.ability`


class Reports(Protocol):
    """A curriculum or a rollout with numbers for the step's report; called once a step."""

    def report(self) -> Info: ...


class RolloutOpens(Protocol):
    """A rollout that prepares something once a run, before its first group."""

    def open(self, task: Task, seed: int) -> None: ...


class Binds(Protocol):
    """An environment that calls models or draws noise: before `reset` it gets the context to do so, and the episode's
    key, by which it names its calls."""

    def bind(self, ctx: Ctx, key: Sequence[object]) -> None: ...


class RolloutAttributes(Protocol):
    """Optional values of a rollout: `role`, which decides; `asks`, whether its lanes ask the curriculum where to start;
    `unit`, "decision" for a `VectorRollout`; `spreads`, as of an engine: the settings of how work is distributed."""

    @property
    def role(self) -> str: ...
    @property
    def asks(self) -> bool: ...
    @property
    def unit(self) -> str | None: ...
    @property
    def spreads(self) -> tuple[str, ...]: ...


class RewardAttributes(Protocol):
    """Optional values of a reward: `counts`, whether its weight is 1 if a recipe gives no weights; `wants_answer`,
    whether problems without an `answer` are ungraded; `name`, of its grades, if it differs from the reward's name in
    the recipe."""

    @property
    def counts(self) -> bool: ...
    @property
    def wants_answer(self) -> bool: ...
    @property
    def name(self) -> str: ...


def is_vector(rollout: Any) -> TypeGuard[VectorRollout]:
    """Whether a rollout is called for decisions, from persistent lanes, rather than for groups, as its `unit`
    declares."""
    return bool(ability(rollout, "unit") == "decision")

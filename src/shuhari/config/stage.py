"""One stage of a run as its components: the result of `build`, and the input of the loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from shuhari.bounds import Count, Length, check
from shuhari.config.distributed import Distributed
from shuhari.data import EMPTY, Number, Sampling
from shuhari.ports import Curriculum, Engine, Follow, Learner, Reward, Rollout, Task, Transform, VectorRollout, ability

if TYPE_CHECKING:
    from shuhari.config.evaluation import Evaluation
    from shuhari.config.stopping import StopWhen

MICRO_BATCH = 4_096  # padded decisions of one forward and backward; 0 in a recipe: the whole minibatch at once


@dataclass(frozen=True)
class Checkpointing:
    """What is kept of a run: checkpoints, and the groups of samples that are stored for reading.

    The last `keep` checkpoints are kept, the best, and the end of each stage that another one follows (for a repeated
    stage, of its last time)."""

    every: Count = 0
    """Number of steps between two checkpoints; 0 writes one whenever that costs at most a twentieth of the time."""
    keep: Length = 2
    """Number of last checkpoints that are kept, beside the best and the ends of stages."""
    rollouts: Count = 3
    """Number of groups of samples that are stored at each step; 0 stores none."""
    groups: tuple[Literal["best", "worst", "changed", "random", "all"], ...] = ("best", "worst", "random")
    """Rules that choose the stored groups, in order: `best`, `worst`, `changed` (most in its share of right answers
    since it was last drawn), `random` for the rest, or `all`, whatever `rollouts` is."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, eq=False)
class Role:
    """A role of a stage: its model and its first weights.

    `model`: to be built (None: like the role it copies); `init`: the role whose weights it starts with; `same_as`:
    the role whose model, weights and all, plays this one too; `source`: another role, or a run (`RUN`, `RUN@step`,
    either with `:role`; else the role of the same name) whose weights it has; `frozen`: no gradient moves them."""

    model: Any = None
    init: str = ""
    same_as: str = ""
    source: str = ""
    frozen: bool = False

    @property
    def asks(self) -> tuple[str, ...]:
        """The roles that it depends on: the one whose weights or model it takes, and those that its model is made
        of."""
        return (*(r for r in (self.same_as or self.init,) if r), *list_roles(self.model))


def walk_learners(learners: Mapping[str, Learner]) -> Iterator[tuple[tuple[str, ...], Learner]]:
    """Yield (path of keys in the recipe, learner) of each learner: `()` for `main`, whose settings are at the top level
    of the recipe; `("learner", name)` for the others, which have a table `[learner.<name>]`."""
    for name, learner in learners.items():
        yield () if name == "main" else ("learner", name), learner


def list_roles(model: Any) -> tuple[str, ...]:
    """Return the roles that a model is made of (`Model.roles`); for most, none."""
    return tuple(ability(model, "roles"))


@dataclass(frozen=True, eq=False)
class Components:
    """One stage. `budget`: what it may spend; `n`, `sampling`: of each request; `tokens`: the largest micro-batch, None
    for no limit; `weights`: reward name -> weight; `evaluation_rollout`: the rollout of evaluation; `stop`: when it
    ends before its budget is spent; `defaults`: dotted key -> value that the recipe did not set; `imitates`: what it
    shows as demonstrations, in words; `laid`: the methods that were laid over it, and what each needs; `distributed`:
    how the work of the run is distributed."""

    name: str
    budget: Mapping[str, float]
    task: Task
    models: Mapping[str, Role]
    engine: Engine
    curriculum: Curriculum
    rollout: Rollout | VectorRollout
    learners: Mapping[str, Learner]
    n: int = 1
    sampling: Sampling = Sampling()  # noqa: RUF009  (frozen)
    tokens: int | None = MICRO_BATCH
    rewards: Mapping[str, Reward] = EMPTY
    weights: Mapping[str, Number] = EMPTY
    collect: Mapping[str, Transform] = EMPTY
    follows: Mapping[str, Follow] = EMPTY
    evaluate: Evaluation | None = None
    evaluation_rollout: Any = None
    stop: StopWhen | None = None
    store: Checkpointing = Checkpointing()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    imitates: str = ""
    laid: Mapping[str, Mapping[str, Any]] = EMPTY
    distributed: Distributed = Distributed()  # noqa: RUF009  (frozen)

    @property
    def notes(self) -> dict[str, str]:
        """Texts that the report of each step has beside its numbers."""
        told = {"imitates": self.imitates, "grades": self.grades}
        return {key: text for key, text in told.items() if text}

    @property
    def grades(self) -> str:
        """How the task grades, in words; "" if its score does not count, or if that is plain."""
        weight = self.weights.get("score", 0 if self.weights else 1)
        return "" if weight == 0 else ability(self.task, "grades")

    def list_rollouts(self) -> dict[str, tuple[Any, Task]]:
        """Return name -> (rollout, the task that it plays), of training and of each way to evaluate."""
        tested = self.evaluate
        task, more = (tested.task or self.task, tested.more) if tested else (self.task, EMPTY)
        ways = {"": self.evaluation_rollout, **{f"/{name}": way.rollout for name, way in more.items()}}
        found = {f"{self.name}/evaluate{at}": (rollout, task) for at, rollout in ways.items() if rollout is not None}
        return {self.name: (self.rollout, self.task), **found}

    def list_memories(self) -> dict[str, Any]:
        """Return place -> component, to walk over all that have memory or hear events."""
        out: dict[str, Any] = {n: getattr(self, n) for n in ("task", "engine", "curriculum", "rollout")}
        out["models"] = {r: role.model for r, role in self.models.items() if role.model is not None}
        out |= {n: dict(getattr(self, n)) for n in ("rewards", "collect", "learners", "follows")}
        tested = {n: getattr(self.evaluate, n, None) for n in ("task", "more", "metrics")}
        return {**out, "evaluate": {"rollout": self.evaluation_rollout, **tested}}  # what is above is found there

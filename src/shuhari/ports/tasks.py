"""Ports of tasks: problems, their grades, and the environments that they are played in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from shuhari.data import Array, Payload, Problem, Step
from shuhari.ports.answers import Answers

if TYPE_CHECKING:
    from gymnasium import Env

    from shuhari.needs import Trace


class Source(Protocol):
    """Problems by index; `size` is None if they are endless."""

    def __getitem__(self, index: int) -> Problem: ...
    def size(self) -> int | None: ...


class Task(Protocol):
    """A source of problems and their grades. `grade` names its rewards; `score` in [0, 1] is the task's own measure.
    `spaces` gives models of fixed size their observations and actions (Gymnasium spaces; None for text).

    Optional: `Makes`, `Listing`, `Compares`, `Fits`, `Marks`, `Previews`, `Filmable`, `Expert`, and the members of
    `TaskAttributes`."""

    def problems(self, split: str) -> Source: ...
    def grade(self, problem: Problem, steps: Sequence[Step]) -> Mapping[str, Any] | None: ...
    def environment(self, problem: Problem) -> Environment | None: ...
    def spaces(self) -> tuple[Any, Any] | None: ...  # (observation, action)


class Listing(Protocol):
    """A task that may list a problem's answers, so that a metric can score them all (`metrics/exact`). `grade` must
    agree. None: they cannot be listed."""

    def answers(self, problem: Problem) -> Answers | None: ...


class Compares(Protocol):
    """A task that may tell the probability that one of two answers is preferred to the other, both texts."""

    def compare(self, problem: Problem, first: str, second: str) -> float: ...


class Environment(Protocol):
    """The environment of one episode. `reset` and `step` may be coroutine functions. An observation that is a `Whole`
    replaces a context of text.

    Optional: `Snapshots`, `Binds`, `Takes`, `Turns`, `Draws`, the members of `EnvironmentAttributes`, and `close()`,
    called when the episode is over."""

    def reset(self, problem: Problem) -> Any: ...  # the first observation
    def step(self, action: Any) -> Any: ...  # (observation, rewards by name, Status | None)


# ---------------------------------------------------------------- what one may have, asked by `shuhari.ports.ability`


class Spaces(Protocol):
    """A required member of a task; `ability` looks it up since a language model is also built without a task."""

    def spaces(self) -> tuple[Any, Any] | None: ...  # (observation, action)


class Makes(Protocol):
    """A task whose environments lanes can play: `make` gives a new one of Gymnasium."""

    def make(self) -> Env[Any, Any]: ...


class Fits(Protocol):
    """A task of listed rows that can drop or shorten some: `fit` sets the rows that replace those of a split. It has
    `too_long`, `path`, `places` (id of a problem -> its position), `counts` (of its splits) and `named_splits`, as
    `tasks.file.File`."""

    def fit(self, split: str, problems: Sequence[Problem]) -> None: ...


class Marks(Protocol):
    """A task that locates errors: the index of the first wrong character of a text, None if it is right."""

    def first_wrong(self, problem: Problem, text: str) -> int | None: ...


class Previews(Protocol):
    """A task that is costly to make: it shows listings an example without being made (a classmethod)."""

    def preview(self) -> Mapping[str, Any]: ...  # of `spaces`, `prompt` and `answer`


class Filmable(Protocol):
    """A task with a variant whose environments `draw`."""

    def filmed(self) -> Task: ...


class Expert(Protocol):
    """A task, or an environment, with a scripted policy."""

    def expert(self, observation: Any, rng: Any) -> Any: ...  # an action as the environment takes it


class TaskAttributes(Protocol):
    """Optional values of a task; `shuhari.kernel.abilities` has the meaning and the default of each."""

    @property
    def alphabet(self) -> str: ...
    @property
    def chat(self) -> bool | None: ...
    @property
    def system(self) -> str: ...
    @property
    def read_from(self) -> Mapping[str, str]: ...
    @property
    def grades(self) -> str: ...
    @property
    def ungraded(self) -> bool: ...
    @property
    def unanswered(self) -> str: ...
    @property
    def copies(self) -> bool | None: ...
    @property
    def simulates(self) -> bool | None: ...
    @property
    def extras(self) -> Mapping[str, Any]: ...
    @property
    def table(self) -> Any: ...  # a `tasks.worlds.finite_horizon.Table`, or None
    @property
    def cells(self) -> tuple[str, ...]: ...
    @property
    def scene(self) -> Any: ...  # a `tasks.scene.Scene`, or None
    @property
    def compute_reward(self) -> Callable[[Array, Array, Any], Any] | None: ...  # of goals, see `buffers.hindsight`
    @property
    def compute_terminated(self) -> Callable[[Array, Array, Any], Any] | None: ...


class Snapshots(Protocol):
    """An environment that can be set back: `restore` of another one takes what `snapshot` gives."""

    def snapshot(self) -> Payload: ...
    def restore(self, snapshot: Any) -> Any: ...  # the observation as it was


class Draws(Protocol):
    """An environment that shows its state: a picture [H, W, 3] uint8, None if there is none."""

    def draw(self) -> Array | None: ...


class Takes(Protocol):
    """An environment that chooses what its `step` gets of a decision."""

    def takes(self, trace: Trace) -> Any: ...


class StepsLanes(Protocol):
    """A class of Gymnasium environments that steps many at once, see `tasks.lanes`."""

    def step_lanes(self, lanes: Any, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]: ...


class Turns(Protocol):
    """An environment that chooses who decides next: one of `acts` of the rollout; None: the next of them. Called after
    `reset` and after each step."""

    def turn(self) -> str | None: ...


class EnvironmentAttributes(Protocol):
    """Optional values of an environment: `facts`, column -> number or array of its last step, with `executed` if
    another action was taken than the one sent; `moves`, the attributes that a reset draws or a step changes (with
    `StepsLanes`)."""

    @property
    def facts(self) -> Mapping[str, Any]: ...
    @property
    def moves(self) -> tuple[str, ...]: ...

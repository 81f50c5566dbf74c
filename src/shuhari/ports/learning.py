"""Ports of learning from collected or recorded data. Axes: `B` rows, `K` positions of a row, `P` links."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.data import Info, Payload, Problem
from shuhari.events import Event, On, Updated, When
from shuhari.needs import Need

if TYPE_CHECKING:
    from shuhari.ports.context import Ctx
    from shuhari.ports.models import Model
    from shuhari.ports.tasks import Task


class Buffer(Protocol):
    """A store of collected samples that yields batches. It fills by `observe(Collected)`; `wanted` is how much it still
    needs (groups; decisions if a VectorRollout feeds it); `draw` yields the batches to learn from and stamps
    `weight/<its stream>`.

    Optional: `Recorded`, `Imitates`, `Records`, and the members of `BufferAttributes`."""

    def wanted(self) -> int: ...
    def draw(self, ctx: Ctx) -> Iterator[Batch]: ...


class Recording(Protocol):
    """Recorded episodes, or episodes played for the purpose: `read` gives whole columns in episode order, each
    episode's decisions and then its closing row (`buffers.recording.columns_of`); the same `seed`, the same columns."""

    def read(self, task: Task, seed: int) -> Mapping[str, Tensor]: ...


class Recorded(Buffer, Protocol):
    """A buffer of recorded data. `held_out` yields up to `n` problems (episodes) of a split that is never trained on,
    in batches as `draw` would; it does not move the buffer's own position."""

    def held_out(self, split: str, n: int, ctx: Ctx) -> Iterator[Batch]: ...


class Transform(Protocol):
    """A function that adds columns to a whole batch, without gradient. Filters set weights to 0; they never delete
    rows."""

    @property
    def needs(self) -> tuple[Need, ...]: ...
    def __call__(self, batch: Batch, ctx: Ctx) -> Batch: ...


class Objective(Protocol):
    """An unreduced loss [B, K], [B], or [P] of links; 0-d only if it couples the batch. Info values may be unreduced
    too: they are averaged over decisions. `couples`: whether a row's loss depends on other rows (then it reads columns
    only, and gets the whole optimiser batch). An objective or transform that calls models itself may name their
    `roles`, so that a missing one is found before the first step."""

    @property
    def needs(self) -> tuple[Need, ...]: ...
    @property
    def couples(self) -> Literal["row", "batch"]: ...
    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]: ...


class Evaluate(Protocol):
    """The loss of one optimiser batch, as an optimiser calls it; each call is a fresh evaluation."""

    def backward(self) -> Info: ...  # fills .grad of the part's parameters
    def gradients(self) -> dict[str, Tensor]: ...  # term -> flat gradient
    def values(self) -> dict[str, float]: ...  # term -> loss, without gradient
    def hvp(self, term: str, vector: Tensor) -> Tensor: ...  # Hessian-vector product of one term


class Optimiser(Protocol):
    """A rule for updating weights. Optional: `Shares`, and the members of `OptimiserAttributes`."""

    def bind(self, params: Sequence[nn.Parameter]) -> None: ...
    def step(self, evaluate: Evaluate, at: float) -> Info: ...  # at: the count that schedules stand at


class Learner(Protocol):
    """The update of weights from collected data. Optional: `HoldsOut`, and the members of `LearnerAttributes`."""

    buffer: Buffer
    transforms: Mapping[str, Transform]

    @property
    def needs(self) -> Sequence[Need]: ...  # scored before the update, with those of the transforms
    def bind(self, models: Mapping[str, Model]) -> None: ...  # as each of its stages starts; idempotent
    def update(self, batch: Batch, ctx: Ctx) -> Updated: ...


class Follow(Protocol):
    """A rule by which the weights of one role follow another's."""

    @property
    def on(self) -> On | tuple[On, ...]: ...  # which events it hears
    def __call__(self, models: Mapping[str, Model], event: Event) -> None: ...


# ---------------------------------------------------------------- what one may have, asked by `shuhari.ports.ability`


class HoldsOut(Protocol):
    """A learner that measures losses and infos on recorded problems that are never trained on."""

    def held_out(self, split: str, n: int, ctx: Ctx) -> Mapping[str, float]: ...


class Imitates(Protocol):
    """A buffer that describes in words what it imitates of a task's problems, see `Demos`."""

    def imitates(self, task: Task) -> str: ...


class Shows(Protocol):
    """A buffer of recorded answers that lists the texts of a problem that it puts behind the prompt, each in a row of
    its own; none if it does not use the problem."""

    def shows(self, problem: Problem) -> tuple[Payload, ...]: ...


class Records(Protocol):
    """A buffer that returns its contents as the columns of a data set."""

    def recorded(self) -> Mapping[str, Tensor]: ...


class Shares(Protocol):
    """An optimiser whose parameters may be shards: `total` sums a number over all of them."""

    def share(self, total: Callable[[Tensor], Tensor]) -> None: ...


class BufferAttributes(Protocol):
    """Optional values of a buffer or a recording; `shuhari.kernel.abilities` has the meaning of each."""

    @property
    def unit(self) -> str | None: ...
    @property
    def size(self) -> int | None: ...
    @property
    def card(self) -> Mapping[str, Any]: ...
    @property
    def split(self) -> str: ...
    @property
    def odd(self) -> tuple[str, ...]: ...
    @property
    def unknown(self) -> str: ...
    @property
    def d4rl(self) -> str: ...
    @property
    def samples(self) -> bool: ...
    @property
    def bootstraps(self) -> bool: ...


class OptimiserAttributes(Protocol):
    """Optional values of an optimiser: when its state is cleared (`reset`); a term that it knows by name -> whether its
    part must have it, else it may not (`terms`)."""

    @property
    def reset(self) -> When | None: ...
    @property
    def terms(self) -> Mapping[str, bool]: ...


class LearnerAttributes(Protocol):
    """Optional values of a learner: name -> what each of its optimisers owns, as in the learner `gradient`."""

    @property
    def parts(self) -> Mapping[str, Any]: ...  # a `learners.parts.Part` each


class FollowAttributes(Protocol):
    """Optional values of a follower, or a `When`: the score of an evaluation whose plateau it acts on."""

    @property
    def waits_for(self) -> str: ...

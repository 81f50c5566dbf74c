"""Ports of engines, which serve the models to rollouts; and the group that a call belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from shuhari.data import Array, Payload, Sampling
from shuhari.needs import Trace

if TYPE_CHECKING:
    from shuhari.ports.models import Model

CURRENT_GROUP: ContextVar[str] = ContextVar("current_group", default="")
"""Key of the request whose group is running; empty outside of one. Its random streams and its calls are named by it."""

REPLAYING: ContextVar[bool] = ContextVar("replaying", default=False)
"""Whether the running work was charged before the run was resumed: then it is not charged again."""


class Engine(Protocol):
    """A server of the policies of all roles. Calls that wait at the same time share one forward pass.

    Optional: `EngineOpens`, `Refuses`, `StandsIn`, `close`, and the members of `EngineAttributes`."""

    async def sample(
        self, role: str, context: Any, sampling: Sampling, n: int = 1, *, key: Sequence[object]
    ) -> list[Trace]: ...
    async def score(self, role: str, context: Any, action: Any, names: Sequence[str]) -> Mapping[str, Array]: ...
    def sync(self, models: Mapping[str, Model], version: int) -> None: ...


class Durations(Protocol):
    """Modelled seconds of one step of a decoder, and of the update of one step of the run."""

    @property
    def decode(self) -> float: ...
    @property
    def train(self) -> float: ...


class AsyncEngine(Engine, Protocol):
    """An engine that keeps groups in flight across steps, at most `staleness` versions of the weights, and continues
    them in a resumed run. If `staleness` is 0 or missing, none of the other members is used."""

    staleness: int
    virtual: Durations | None  # None: the clock's time

    @property
    def busy(self) -> bool: ...  # whether there is work that does not wait for the world outside
    def saved(self) -> Payload: ...  # what groups in flight were told, and what their calls have said so far
    def load(self, saved: Any) -> None: ...  # answer again what was answered; the rest waits for `loaded`
    def loaded(self) -> None: ...  # all that were in flight have asked again
    def forget(self, group: str) -> None: ...  # a group has landed: nobody asks for its answers again


# ---------------------------------------------------------------- what one may have, asked by `shuhari.ports.ability`


class EngineOpens(Protocol):
    """An engine that gets, before the first `sync` of a run, the `seed` of its draws and a `charge(what, amount)` for
    `tokens` (drawn) and `prompt_tokens` (read)."""

    def open(self, seed: int, charge: Callable[[str, float], None]) -> None: ...


class Refuses(Protocol):
    """An engine that does not support every kind of sampling: the reason why it cannot sample so, "" if it can."""

    def refuses(self, sampling: Sampling) -> str: ...


class StandsIn(Protocol):
    """An engine that cannot run in a rehearsal: another takes its place there."""

    def stand_in(self) -> Engine: ...


class Reads(Protocol):
    """A client of a model elsewhere that can score given text: log-probabilities, see `Vllm.read`."""

    async def read(self, ids: list[int], never: Sequence[int]) -> tuple[list[float], list[list[float]]]: ...


class EngineAttributes(Protocol):
    """Optional values of an engine: the role whose weights it cannot follow (`fixed`); for the others see
    `AsyncEngine`."""

    @property
    def fixed(self) -> str: ...
    @property
    def staleness(self) -> int: ...
    @property
    def virtual(self) -> Durations | None: ...
    @property
    def busy(self) -> bool: ...

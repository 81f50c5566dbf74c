"""`ability`: what a component has of that which it may have, by name, with the type that its protocol says.

The protocols (`Reports`, `Snapshots`, `RolloutAttributes`, ...) stand beside their ports, those of any component here.
What stands for a missing one is in `shuhari.kernel.abilities.OPTIONAL`. A name that is not optional is an error of the
type checker. A hook of which two ports have a form of their own (`open`, `held_out`) goes by the port of the component.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from shuhari.kernel import abilities

if TYPE_CHECKING:
    from gymnasium import Env
    from torch import Tensor, nn

    from shuhari.batch import Batch
    from shuhari.data import Array, Info, Payload, Problem, Sampling
    from shuhari.events import Event, When
    from shuhari.needs import Trace
    from shuhari.ports.answers import Answers
    from shuhari.ports.collecting import Rollout, VectorRollout
    from shuhari.ports.context import Ctx
    from shuhari.ports.engines import Durations, Engine
    from shuhari.ports.learning import Buffer, Learner
    from shuhari.ports.models import Saving
    from shuhari.ports.tasks import Task


class Observes(Protocol):
    """A component that hears what the run tells, in commit order."""

    def observe(self, event: Event) -> None: ...


class Restarts(Protocol):
    """A component that begins or tells again, in a run that is resumed, what its `state` does not hold."""

    def restart(self, ctx: Ctx) -> None: ...


class Remembers(Protocol):
    """A component with memory: a plain tree of tensors and JSON, saved and set again."""

    state: Any


class Closes(Protocol):
    """A component that lets go of what it holds; asked of environments, rollouts, rewards and engines."""

    def close(self) -> None: ...


@overload
def ability(
    component: object,
    name: Literal["role", "alphabet", "name", "kind", "path", "device", "fixed", "waits_for", "unknown"],
) -> str: ...
@overload
def ability(component: object, name: Literal["unit"]) -> str | None: ...
@overload
def ability(
    component: object,
    name: Literal["asks", "ungraded", "counts", "packs", "busy", "trains", "alone", "samples", "bootstraps"],
) -> bool: ...
@overload
def ability(component: object, name: Literal["copies", "simulates"]) -> bool | None: ...
@overload
def ability(component: object, name: Literal["staleness"]) -> int: ...
@overload
def ability(component: object, name: Literal["limit", "size"]) -> int | None: ...
@overload
def ability(
    component: object, name: Literal["cells", "moves", "roles", "odd", "names", "spreads"]
) -> tuple[str, ...]: ...
@overload
def ability(component: object, name: Literal["extras", "facts", "card", "parts"]) -> Mapping[str, Any]: ...
@overload
def ability(component: object, name: Literal["read_from"]) -> Mapping[str, str]: ...
@overload
def ability(component: object, name: Literal["terms"]) -> Mapping[str, bool]: ...
@overload
def ability(component: object, name: Literal["offers"]) -> Collection[str] | None: ...
@overload
def ability(component: object, name: Literal["module"]) -> nn.Module | None: ...
@overload
def ability(component: object, name: Literal["virtual"]) -> Durations | None: ...
@overload
def ability(component: object, name: Literal["reset"]) -> When | None: ...
@overload
def ability(
    component: object, name: Literal["state", "table", "scene", "bins", "quantiles", "return_statistic", "lora"]
) -> Any: ...
@overload
def ability(component: object, name: Literal["observe"]) -> Callable[[Event], None] | None: ...
@overload
def ability(component: object, name: Literal["restart"]) -> Callable[[Ctx], None]: ...
@overload
def ability(component: object, name: Literal["close"]) -> Callable[[], None]: ...
@overload
def ability(component: object, name: Literal["report"]) -> Callable[[], Info]: ...
@overload
def ability(component: object, name: Literal["spaces"]) -> Callable[[], tuple[Any, Any] | None]: ...
@overload
def ability(component: object, name: Literal["make"]) -> Callable[[], Env[Any, Any]] | None: ...
@overload
def ability(component: object, name: Literal["answers"]) -> Callable[[Problem], Answers | None]: ...
@overload
def ability(component: object, name: Literal["first_wrong"]) -> Callable[[Problem, str], int | None] | None: ...
@overload
def ability(component: object, name: Literal["preview"]) -> Callable[[], Mapping[str, Any]] | None: ...
@overload
def ability(component: object, name: Literal["expert"]) -> Callable[[Any, Any], Any] | None: ...
@overload
def ability(component: object, name: Literal["filmed"]) -> Callable[[], Task] | None: ...
@overload
def ability(component: object, name: Literal["draw"]) -> Callable[[], Array | None]: ...
@overload
def ability(component: object, name: Literal["bind"]) -> Callable[[Ctx, Sequence[object]], None]: ...
@overload
def ability(component: object, name: Literal["snapshot"]) -> Callable[[], Payload] | None: ...
@overload
def ability(
    component: object, name: Literal["step_lanes"]
) -> Callable[[Any, Array], tuple[Array, Array, Array, Array, dict[str, Any]]] | None: ...
@overload
def ability(component: object, name: Literal["takes"]) -> Callable[[Trace], Any] | None: ...
@overload
def ability(component: object, name: Literal["decision"]) -> Callable[[Tensor], Mapping[str, Tensor]] | None: ...
@overload
def ability(component: object, name: Literal["decide"]) -> Callable[[Any], Mapping[str, Tensor]] | None: ...
@overload
def ability(component: object, name: Literal["encode"]) -> Callable[[Payload], Array] | None: ...
@overload
def ability(component: object, name: Literal["decode"]) -> Callable[[Array], str] | None: ...
@overload
def ability(component: object, name: Literal["save", "save_scorer"]) -> Saving | None: ...
@overload
def ability(component: object, name: Literal["decoder"]) -> Callable[..., Any] | None: ...
@overload
def ability(component: object, name: Literal["export"]) -> Callable[[str | Path], None] | None: ...
@overload
def ability(component: object, name: Literal["renamed"]) -> Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]: ...
@overload
def ability(component: object, name: Literal["refuses"]) -> Callable[[Sampling], str]: ...
@overload
def ability(component: object, name: Literal["stand_in"]) -> Callable[[], Engine] | None: ...
@overload
def ability(
    component: object, name: Literal["read"]
) -> Callable[[list[int], Sequence[int]], Coroutine[Any, Any, tuple[list[float], list[list[float]]]]] | None: ...
@overload
def ability(component: object, name: Literal["share"]) -> Callable[[Callable[[Tensor], Tensor]], None] | None: ...
@overload
def ability(component: object, name: Literal["imitates"]) -> Callable[[Task], str] | None: ...
@overload
def ability(component: object, name: Literal["recorded"]) -> Callable[[], Mapping[str, Tensor]] | None: ...
@overload
def ability(component: Engine, name: Literal["open"]) -> Callable[[int, Callable[[str, float], None]], None]: ...
@overload
def ability(component: Rollout | VectorRollout, name: Literal["open"]) -> Callable[[Task, int], None]: ...
@overload
def ability(
    component: Learner, name: Literal["held_out"]
) -> Callable[[str, int, Ctx], Mapping[str, float] | tuple[()]]: ...
@overload
def ability(component: Buffer, name: Literal["held_out"]) -> Callable[[str, int, Ctx], Iterator[Batch] | tuple[()]]: ...
def ability(component: object, name: str) -> Any:
    """What `component` has under the optional `name`, or what stands for it. KeyError for a name that is not optional,
    with the nearest one that is."""
    return abilities.ability(component, name)

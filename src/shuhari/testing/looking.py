"""Tools for checking a component: what it draws, changes and remembers, and whether its calls repeat.

A failed check raises ConformanceError, which names the component, what it did and what was expected.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.kernel import state
from shuhari.kernel.abilities import explain_misfit
from shuhari.loop.breaches import DRAWS, IN_PLACE, find_changed, generator_states
from shuhari.ports.hooks import ability
from shuhari.store.codec import dumps, loads
from shuhari.testing.compare import differences, to_plain


class ConformanceError(AssertionError):
    """A component does what its port does not allow."""


def require(holds: object, who: object, message: str) -> None:
    """Raise ConformanceError, which names the component, unless a condition holds."""
    if not holds:
        raise ConformanceError(f"{type(who).__name__}: {message}")


def require_port(kind: str, component: Any) -> None:
    """Raise ConformanceError if the component lacks a method that its port must have."""
    lack = explain_misfit(kind, component)
    require(not lack, component, lack)


# ---------------------------------------------------------------- several calls


def check_repeats(
    component: Any,
    use: Callable[[Any, Any, int], Any],
    *,
    n: int = 4,
    world: Callable[[], Any] = lambda: None,
    begin: Callable[[Any, Any], object] = lambda component, world: None,
    resume: Callable[[Any, Any], object] = lambda component, world: None,
) -> list[Any]:
    """Use a component n times and return what it gave. A second pass must give the same bits; nothing may be drawn from
    a global generator; and a new component with the state saved half-way must continue as if nothing had happened.

    use: (component, world, i) -> a plain tree or a batch; world: what the calls change outside of the component, made
    anew for each pass; begin: called with each new component, before a state is restored; resume: called after that.
    The component itself is not used: new ones are made from its settings.
    """

    def play(mine: Any, around: Any, of: range) -> list[Any]:
        generators = generator_states()
        found = [to_tree(use(mine, around, i)) for i in of]
        require(generator_states() == generators, component, DRAWS)
        return found

    def new(around: Any) -> Any:
        made = rebuild(component)
        begin(made, around)
        return made

    around = world()
    whole = play(new(around), around, range(n))
    around = world()
    cut = new(around)
    found = play(cut, around, range(n // 2))
    message = "gave something else when it was made and used again: it keeps something outside of itself, or draws "
    message += "from elsewhere than ctx.rng or ctx.noise"
    require_same(whole[: n // 2], found, component, message)
    try:
        saved = loads(dumps(state.memory(cut)))
    except TypeError as error:
        raise ConformanceError(f"{type(component).__name__}: its state is not a plain tree: {error}") from error
    later = rebuild(component)
    begin(later, around)
    state.remember(later, saved)
    resume(later, around)
    message = "went on otherwise after it was saved and made anew: it keeps something outside of `state`"
    require_same(whole[n // 2 :], play(later, around, range(n // 2, n)), component, message)
    return whole


def require_memory(component: Any, use: Callable[[Any], Any], ctx: Any) -> None:
    """Raise ConformanceError if a component, used a few times, continues otherwise after its state was saved and
    restored in a new one with the same settings. A component that is no dataclass cannot be made anew, and is not
    checked."""
    if is_dataclass(component) and not isinstance(component, type):
        with keep_unchanged(component, ctx):
            check_repeats(component, lambda mine, _, i: use(mine))


def rebuild(component: Any) -> Any:
    """Return a new component with the same settings; components in its fields are made anew too, plain values are kept.
    """
    if isinstance(component, Mapping):
        return {k: rebuild(v) for k, v in component.items()}
    if type(component) in (list, tuple):
        return type(component)(rebuild(v) for v in component)
    if not is_dataclass(component) or isinstance(component, type):
        return component
    return type(component)(**{f.name: rebuild(getattr(component, f.name)) for f in fields(component) if f.init})


def to_tree(x: Any) -> Any:
    """Convert a value to a tree for `differences`; a batch becomes its columns."""
    if isinstance(x, Batch):
        return to_plain({name: x[name] for name in sorted(x.names())})
    return to_plain(x)


def require_same(first: Any, second: Any, who: Any, message: str) -> None:
    """Raise ConformanceError, with the places, if two trees are not bitwise equal."""
    found = differences(first, second)
    require(not found, who, f"{message} ({'; '.join(found[:3])})")


# ---------------------------------------------------------------- one call


def call_twice(self: Any, call: Callable[[], Any], ctx: Any) -> tuple[Any, Any]:
    """Call twice from the same state, and return both results. Raises ConformanceError if the call draws from a global
    generator."""
    before, generators = copy_memory(self, ctx), generator_states()
    found = call()
    require(generator_states() == generators, self, DRAWS)
    with keep_unchanged(self, ctx):
        restore(self, ctx, before)
        again = call()
    return found, again


@contextmanager
def keep_unchanged(self: Any, ctx: Any) -> Iterator[None]:
    """Restore the run and the component at the end of the block."""
    before, problems, tell = copy_memory(self, ctx), list(ctx.problems), ctx.tell
    ctx.tell = lambda event: None
    try:
        yield
    finally:
        ctx.tell = tell
        ctx.problems[:] = problems
        restore(self, ctx, before)


def copy_memory(self: Any, ctx: Any) -> dict[str, Any]:
    """Copy the state that a call may change: the state of the component, the ledger, and the weights and statistics of
    models."""
    mine = copy.deepcopy(ability(self, "state"))
    return {"state": mine, "ledger": dict(ctx.ledger), "models": copy_weights(ctx.models)}


def copy_weights(models: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Return role -> copies of the weights and statistics of its model."""
    return {
        role: {k: v.detach().clone() for k, v in m.module.state_dict().items()}
        for role, m in models.items()
    }


def have_same_weights(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether each tensor of `a` equals the one of that name in `b`."""
    return all(torch.equal(x, b[name]) for name, x in a.items())


def restore(self: Any, ctx: Any, kept: Mapping[str, Any]) -> None:
    if kept["state"] is not None:
        self.state = copy.deepcopy(kept["state"])
    ctx.ledger.clear()
    ctx.ledger.update(kept["ledger"])
    with torch.no_grad():
        for role, tensors in kept["models"].items():
            now = ctx.models[role].module.state_dict()
            for name, value in tensors.items():
                if not torch.equal(now[name], value):
                    now[name].copy_(value)


def require_unchanged(self: Any, batch: Batch, before: Mapping[str, Tensor]) -> None:
    """Raise ConformanceError if a column of a batch has changed."""
    name = find_changed(batch, before)
    require(name is None, self, f"changed the column {name!r} of the batch that it was given, {IN_PLACE}")

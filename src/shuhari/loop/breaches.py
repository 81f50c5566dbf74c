"""Checks of what a component must leave alone: the generators of the whole process, columns that it was given, models
that it only reads. A rehearsal runs these checks, and so does `shuhari.testing`; training does not, because of their
cost.

State kept outside of `state` is looked for in a user's components without a `state`: attributes that change. Left out:
state beside a `state`, which may be derived again, and globals.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import ContractError
from shuhari.kernel import state
from shuhari.ports.hooks import ability
from shuhari.store.codec import dumps

LARGE = 1 << 22  # bytes of an attribute that is not looked at
DRAWS = "drew from a global generator: draw from ctx.rng(name) or ctx.noise"
UNREPEATABLE = "drew from a global generator of the process, so that a run that is resumed will differ"
IN_PLACE = "in place: columns are added with batch.put"
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes of a number -> integers of that size


def generator_states() -> tuple[Any, ...]:
    """Return the states of the generators that a whole process shares: torch's, numpy's and Python's."""
    numbers: Any = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), numbers[1].tobytes(), numbers[2], random.getstate()


def copy_columns(batch: Batch) -> dict[str, Tensor]:
    """Return name -> a copy of the column."""
    return {name: batch[name].detach().clone() for name in sorted(batch.names())}


def find_changed(batch: Batch, before: Mapping[str, Tensor]) -> str | None:
    """Return the name of a column that has changed; None if none has."""
    return next((name for name, column in before.items() if not are_equal(batch[name], column)), None)


def are_equal(a: Tensor, b: Tensor) -> bool:
    """Whether two columns have the same shape and numbers; NaN equals NaN."""
    a, b = a.detach(), b.detach()
    return a.shape == b.shape and bool(torch.allclose(a, b, atol=0, rtol=0, equal_nan=True) if a.is_floating_point()
                                       else torch.equal(a, b))  # fmt: skip


def sum_weights(models: Mapping[str, Any]) -> dict[str, int]:
    """Return role -> a checksum of the bits of its model's weights and statistics, whatever their order."""

    def bits(x: Any) -> int:
        return int(x.detach().view(WHOLE[x.element_size()]).sum(dtype=torch.int64)) if isinstance(x, Tensor) else 0

    modules = {role: ability(model, "module") for role, model in models.items()}
    return {role: sum(map(bits, m.state_dict().values())) for role, m in modules.items() if m is not None}


@contextmanager
def keep_columns(batch: Batch, who: str) -> Iterator[None]:
    """Raise ContractError if a column of the batch was changed in place inside the block; stamped columns are left out.
    """
    before = copy_columns(batch)
    yield
    if (name := find_changed(batch, {k: v for k, v in before.items() if k not in batch.stamps})) is not None:
        raise ContractError(f"{who} changed the column {name!r} of the batch {IN_PLACE}")


@contextmanager
def notice_memory(ctx: Any, components: Any) -> Iterator[None]:
    """Add a message to the run's problems if a user's component without a `state` changes attributes inside the block:
    a resumed run would lose them."""
    own = [(path, c) for path, c in state.walk(components)
           if not type(c).__module__.startswith("shuhari.") and ability(c, "state") is None]  # fmt: skip
    before = [_describe_attributes(c) for _, c in own]
    yield
    for (path, component), known in zip(own, before, strict=True):
        now = _describe_attributes(component)
        if changed := ", ".join(repr(name) for name, value in known.items() if now.get(name) != value):
            who = f"{type(component).__name__} ({path}) changes {changed} as it is used and has no `state`"
            ctx.problems.append(f"{who}: a run that is resumed will have lost that; expected memory in `state`")


def _describe_attributes(component: Any) -> dict[str, bytes]:
    """Return name -> the bytes of each attribute that is plain: numbers, text, arrays and containers of these."""
    found = {}
    for name, value in vars(component).items():
        if not name.startswith("__") and (not isinstance(value, Tensor | np.ndarray) or value.nbytes <= LARGE):
            with suppress(TypeError, ValueError, RecursionError):
                found[name] = dumps(value)
    return found


@contextmanager
def notice_draws(ctx: Any, who: str) -> Iterator[None]:
    """Add a message to the run's problems if the block draws from a global generator. It is no error: code that talks
    to others (a judge, an environment) may have reasons to do so."""
    before = generator_states()
    yield
    if generator_states() != before:
        ctx.problems.append(f"{who} {UNREPEATABLE}: expected ctx.rng(name), ctx.noise, or a generator of its own")

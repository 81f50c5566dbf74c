"""Sampling settings as models meet them: refused where they cannot be honoured, read back from rows when scoring.

Leaves out truncation (top-p, top-k, min-p) and text: those are a language model's own. Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Ramp, Sampling

# `max_new` bounds decisions that come one by one: a model of one decision always stays within it
_OFF = {f.name: f.default for f in fields(Sampling) if f.name != "max_new"}


def honour(sampling: Sampling, supported: Collection[str], model: str) -> None:
    """Raise ValueError for a setting that is on and not among those that `model` supports: nothing is ignored."""
    for name, off in _OFF.items():
        value = getattr(sampling, name)
        if value != off and name not in supported:
            can = ", ".join(sorted(supported)) or "none"
            raise ValueError(
                f"sampling.{name} = {value!r}: the model {model!r} cannot honour it; settings that it can: {can}"
            )


def first_temperature(sampling: Sampling) -> float:
    """The temperature of the first decision."""
    t = sampling.temperature
    return float(t(0)) if isinstance(t, Ramp) else t


def uniform_share(sampling: Sampling) -> float:
    """`epsilon` as a number; ValueError where it is still a schedule."""
    if isinstance(sampling.epsilon, Ramp):
        raise ValueError("sampling.epsilon is a schedule over steps: the run resolves it before sampling")
    return float(sampling.epsilon)


def temperature(batch: Batch) -> Tensor | None:
    """[B, K] at which the rows were sampled; None where all of it is 1. Padding and rows that do not say are 1."""
    t = batch.get("temperature")
    return None if t is None else t.where(t > 0, 1.0)


def epsilon(batch: Batch) -> Tensor | None:
    """[B, 1] the uniform share of the behaviour's mixture; None where there is none. Rows that do not say are 0."""
    e = batch.get("epsilon")
    if e is None:
        return None
    e = e.where(e > 0, 0.0)
    return e if e.dim() == 2 else e[:, None]

"""Sampling settings: refuses those that a model does not support, and reads them back from rows when scoring.

Leaves out truncation (top-p, top-k, min-p) and text, which language models handle. Axes: `B` rows, `K` positions, `A`
action dimensions.
"""

from __future__ import annotations

import math
from dataclasses import fields
from functools import lru_cache

import torch
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Ramp, Sampling
from shuhari.needs import Noise

# `max_new` limits decisions made one by one: a model of one decision is always within it
_OFF = {f.name: f.default for f in fields(Sampling) if f.name != "max_new"}
EDGE = 1 - 2.0**-24  # the largest float32 below 1


@lru_cache(256)
def honour(sampling: Sampling, supported: tuple[str, ...], model: str) -> None:
    """Raises ValueError for a setting that is on and not `supported` by `model`: nothing is ignored."""
    for name, off in _OFF.items():
        value = getattr(sampling, name)
        if value != off and name not in supported:
            can = ", ".join(sorted(supported)) or "none"
            raise ValueError(
                f"sampling.{name} = {value!r}: the model {model!r} cannot honour it; settings that it can: {can}"
            )


def first_temperature(sampling: Sampling) -> float:
    """Returns the temperature of the first decision."""
    t = sampling.temperature
    return float(t(0)) if isinstance(t, Ramp) else t


def uniform_share(sampling: Sampling) -> float:
    """Returns `epsilon` as a number. Raises ValueError if it is still a schedule."""
    if isinstance(sampling.epsilon, Ramp):
        message = "a number, which the run makes of a schedule before it samples"
        raise ValueError(f"sampling.epsilon is a schedule, {sampling.epsilon}: expected {message}")
    return float(sampling.epsilon)


def uniform_rows(noise: Noise, dimensions: int, e: float) -> tuple[Tensor, Tensor]:
    """Returns ([B, 1] bool, a share `e` of the rows; [B, A] uniform actions in (-1, 1) for them)."""
    v = noise.uniform(0, dimensions + 1).float()
    return v[:, :1] < e, (2 * v[:, 1:] - 1).clamp(-EDGE, EDGE)


def mix_log_density(logp: Tensor, e: Tensor, dimensions: int) -> Tensor:
    """Returns the log-density of (1 - e) p + e U, U uniform on (-1, 1) in every dimension."""
    return torch.logaddexp((-e).log1p() + logp, e.log() - dimensions * math.log(2))


def temperature(batch: Batch) -> Tensor | None:
    """Returns [B, K] the temperatures at which the rows were sampled; None if all are 1. Padding and rows without one
    have 1."""
    t = batch.get("temperature")
    return None if t is None else t.where(t > 0, 1.0)


def epsilon(batch: Batch) -> Tensor | None:
    """Returns [B, 1] the uniform share of the behaviour's mixture; None if there is none. Rows without one have 0."""
    e = batch.get("epsilon")
    if e is None:
        return None
    e = e.where(e > 0, 0.0)
    return e if e.dim() == 2 else e[:, None]

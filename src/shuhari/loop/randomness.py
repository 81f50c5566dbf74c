"""Random streams by name, and schedules: all draws of a run depend on its seed, the step, the phase and a name.

Axes: `B` rows of a batch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from shuhari.batch import Batch
from shuhari.data import Array, Number, Ramp, Sampling, code
from shuhari.kernel.noise import CounterNoise, mix
from shuhari.ports import CURRENT_GROUP


class Streams:
    """The streams of a run of this seed, at its current `step`, `within` the named phases, and at `count` of its
    schedules."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.step = 0
        self.count = 0.0
        self.within: tuple[object, ...] = ()

    def key(self, *name: object) -> int:
        """Return the 63-bit number of a named stream, the same at every step."""
        return code(self.seed, *name)

    def rng(self, *name: object) -> torch.Generator:
        """Return the generator of a named stream in this phase of this step. Within a group in flight it is the group's
        own, since the time at which a group runs depends on the others."""
        place: tuple[object, ...] = (asker,) if (asker := CURRENT_GROUP.get()) else (self.step, code(*self.within))
        return torch.Generator().manual_seed(code(self.seed, *place, *name))

    def noise(self, batch: Batch, name: str) -> CounterNoise:
        """Return noise for each of the B rows, by their places in the optimiser batch (the column `_row`) if they have
        some."""
        row = batch["_row"] if "_row" in batch else torch.arange(len(batch))
        place: tuple[object, ...] = (asker, name) if (asker := CURRENT_GROUP.get()) else (self.step, name, *self.within)
        return CounterNoise(mix(np.uint64(code(self.seed, *place)) + _row_keys(row)))

    def phase(self, *name: object, root: bool = False) -> Phase:
        """Return a context manager that gives the code inside streams of its own, under `name` within the current
        phase; `root`: under `name` alone."""
        return Phase(self, name, root)

    def at(self, number: Number) -> float:
        """Return a number, or a schedule's current value."""
        return number(self.count) if isinstance(number, Ramp) else number

    def now(self, sampling: Sampling) -> Sampling:
        """Return the sampling with schedules over steps resolved; a temperature ramp counts decisions and stays."""
        return replace(sampling, epsilon=self.at(sampling.epsilon)) if isinstance(sampling.epsilon, Ramp) else sampling


class Phase:
    """A phase while it lasts. A class rather than a generator, for speed: each optimiser step opens some."""

    __slots__ = ("before", "name", "root", "streams")

    def __init__(self, streams: Streams, name: tuple[object, ...], root: bool) -> None:
        self.streams, self.name, self.root = streams, name, root

    def __enter__(self) -> None:
        self.before = self.streams.within
        self.streams.within = self.name if self.root else (*self.before, *self.name)

    def __exit__(self, *_: object) -> None:
        self.streams.within = self.before


@lru_cache(8)
def _row_keys(row: torch.Tensor) -> Array:
    """Return the keys of rows, cached by tensor, not by value: whole optimiser batches of a size share one."""
    return mix(row.numpy().astype(np.uint64))

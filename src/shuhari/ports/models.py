"""Ports of models: what scores decisions, what acts, and what a language model has beside that.

What models answer (`Dist`, `Need`, `Trace`) is in `shuhari.needs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

from torch import nn

from shuhari.batch import Batch
from shuhari.data import Array, Payload, Sampling
from shuhari.kernel.abilities import ability
from shuhari.needs import Noise, Trace
from shuhari.ports.tasks import Task


@runtime_checkable
class Model(Protocol):
    """A function from a batch to decisions. `build` makes `module` (with the global torch seed set for it).

    A model made of others names them as `roles`, a tuple, and is given them by `bind(models)`, role -> model, whenever
    roles are cast; it holds them so that neither a copy of itself nor its `module` contains them.
    Optional: `roles`, `packs`, `renamed`, `save` (see `abilities`); a model of text has what `TextModel` has."""

    @property
    def module(self) -> nn.Module: ...
    def build(self, task: Task) -> None: ...
    def __call__(self, batch: Batch) -> Any: ...  # a Dist


class Policy(Model, Protocol):
    """A model that acts. `kind`: its log-probability is exact, that of a denoising chain, or a bound."""

    kind: Literal["exact", "chain", "bound"]

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Sequence[Trace]: ...  # row i: noise row i


class TextModel(Policy, Protocol):
    """A policy whose contexts and actions are token ids. Optional: `decoder(**settings)`, continuous batching (None
    where a layout has none), and `limit`."""

    @property
    def end(self) -> int: ...  # the id of the end token
    @property
    def limit(self) -> int | None: ...  # the longest row that it reads, in tokens
    def encode(self, prompt: Payload) -> Array: ...  # a string or messages -> ids [k]
    def decode(self, ids: Array) -> str: ...  # without a closing end token
    def save(self, directory: str | Path, *, dtype: str = "", shard: str = "5GB") -> None: ...  # as others read it


def is_text(model: Any) -> TypeGuard[TextModel]:
    """Whether a model reads and writes token ids."""
    return ability(model, "encode") is not None

"""Ports of models: what scores decisions, what acts, and what language models have in addition.

What models return (`Dist`, `Need`, `Trace`) is in `shuhari.needs`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

from torch import Generator, Tensor, nn

from shuhari.batch import Batch
from shuhari.data import Array, Payload, Sampling
from shuhari.kernel.abilities import ability
from shuhari.needs import Noise, Trace
from shuhari.ports.tasks import Task


@runtime_checkable
class Model(Protocol):
    """A function from a batch to decisions. `build` makes `module` (with the global torch seed set for it).

    A model made of others names them as `roles`, a tuple, and gets them by `bind(models)`, role -> model, whenever
    roles are cast; it holds them so that neither a copy of itself nor its `module` contains them. Optional: `Decides`,
    `Decision`, `Renames`, `LiesOnDisk`, `Initial`, `Saves`, `SavesScorer`, `Exports`, `Decodes`, and the members of
    `ModelAttributes`; a language model has the members of `TextModel`."""

    @property
    def module(self) -> nn.Module: ...
    def build(self, task: Task) -> None: ...
    def __call__(self, batch: Batch) -> Any: ...  # a Dist


class Policy(Model, Protocol):
    """A model that acts. `kind`: its log-probability is exact, that of a denoising chain, or a bound."""

    kind: Literal["exact", "chain", "bound"]

    def sample(self, contexts: Any, sampling: Sampling, *, noise: Noise) -> Sequence[Trace]: ...  # row i: noise row i


class TextModel(Policy, Protocol):
    """A policy whose contexts and actions are token ids. Optional: `decoder(**settings)`, continuous batching (None if
    a layout has none), and `limit`."""

    @property
    def end(self) -> int: ...  # the id of the end token
    @property
    def limit(self) -> int | None: ...  # the longest row that it reads, in tokens
    def encode(self, prompt: Payload) -> Array: ...  # a string or messages -> ids [k]
    def decode(self, ids: Array) -> str: ...  # without a closing end token
    def save(self, directory: str | Path, *, dtype: str = "", shard: str = "5GB") -> None: ...  # as others read it


# ---------------------------------------------------------------- what one may have, asked by `shuhari.ports.ability`


class Decision(Protocol):
    """A policy whose decisions are in other terms than the environment's actions: it turns `taken`, the actions that
    the environment got, into the columns of its decisions."""

    def decision(self, taken: Tensor) -> Mapping[str, Tensor]: ...  # `taken` [B, ...]


class Rewarded(Protocol):
    """A policy with a memory that depends on rewards: returns the memory [..., S] after the `reward` [...] for its last
    decision, weighted as in the run."""

    def rewarded(self, memory: Any, reward: Any) -> Any: ...


class Decides(Protocol):
    """A controller with a deterministic action, as environments take it (the column `action`), and more columns."""

    def decide(self, contexts: Any) -> Mapping[str, Tensor]: ...


class Encodes(Protocol):
    """A model that reads text, and with `decode` also writes text; see `TextModel`."""

    def encode(self, prompt: Payload) -> Array: ...
    def decode(self, ids: Array) -> str: ...


class Saving(Protocol):
    """A function that writes a directory in the format of others: `dtype` float32, bfloat16 or float16, `shard` the
    largest file."""

    def __call__(self, directory: str | Path, *, dtype: str = "", shard: str = "5GB") -> None: ...


class Saves(Protocol):
    """A model that can be saved for other libraries."""

    @property
    def save(self) -> Saving: ...


class SavesScorer(Protocol):
    """A value head that can be saved for other libraries, as a classifier of texts."""

    @property
    def save_scorer(self) -> Saving: ...


class Exports(Protocol):
    """A model whose weights an engine elsewhere can serve; `outline` is what the engine must know of it beforehand."""

    def export(self, directory: str | Path) -> None: ...
    def outline(self) -> Any: ...  # a `models.text.pretrained.Outline`


class Decodes(Protocol):
    """A model with continuous batching; `decoder` returns None if its layout has none."""

    @property
    def decoder(self) -> Callable[..., Any]: ...  # (**settings) -> a `models.text.decoder.Decoder` | None


class Renames(Protocol):
    """A model whose weights have other names now than in a checkpoint (under adapters)."""

    def renamed(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]: ...


class LiesOnDisk(Protocol):
    """A loaded model: (the path, the names of the weights of `module` that are there unchanged), once it is built. A
    checkpoint holds those that are still the same by reference."""

    def on_disk(self) -> tuple[str, tuple[str, ...]]: ...


class Initial(Protocol):
    """A pretrained model that can still be evaluated as it was when it was loaded: returns a function from a batch to a
    Dist, without gradients; None if the initial weights are not known."""

    def initial(self) -> Callable[[Batch], Any] | None: ...


class ModelAttributes(Protocol):
    """Optional values of a model; `shuhari.kernel.abilities` has the meaning and the default of each."""

    @property
    def module(self) -> nn.Module | None: ...
    @property
    def kind(self) -> str: ...
    @property
    def offers(self) -> Collection[str] | None: ...
    @property
    def roles(self) -> tuple[str, ...]: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def memory(self) -> int | None: ...
    @property
    def chains(self) -> bool: ...
    @property
    def text(self) -> Any: ...  # a `models.text.tokenizers.Tokenizer`, or None
    @property
    def longest(self) -> int | None: ...
    @property
    def special(self) -> Mapping[int, str]: ...
    @property
    def bins(self) -> Any: ...  # a `models.readout.Bins`, or None
    @property
    def quantiles(self) -> Any: ...  # a `models.quantiles.Quantiles`, or None
    @property
    def with_noise(self) -> Callable[[Generator], Callable[[Batch], Any]] | None: ...
    @property
    def by_batch(self) -> Callable[..., Sequence[Any]] | None: ...  # (*batches) -> a Dist each
    @property
    def return_statistic(self) -> Any: ...  # a `Moments`, or None
    @property
    def packs(self) -> bool: ...
    @property
    def lora(self) -> Any: ...  # the settings of its adapters, or None
    @property
    def path(self) -> str: ...
    @property
    def device(self) -> str: ...


def is_text(model: Any) -> TypeGuard[TextModel]:
    """Whether a model reads and writes token ids."""
    return ability(model, "encode") is not None

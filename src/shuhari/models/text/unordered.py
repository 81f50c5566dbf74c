"""A masked language model whose masks are filled in in another order than left to right, such as the most confident
first.

Source: LLaDA (Nie et al. 2025, "Large Language Diffusion Models", arXiv 2502.09992), whose low-confidence remasking
keeps the most confident proposals. Left out: blocks of an answer, one after the other; remasking of filled-in tokens.

Axes: `B` rows, `L` tokens of an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from shuhari.batch import Batch
from shuhari.bounds import Length, check
from shuhari.data import Array, Payload, Sampling
from shuhari.kernel.abilities import find_missing
from shuhari.kernel.registry import register
from shuhari.models.composite import Others
from shuhari.models.text.masked import Answers, Masked
from shuhari.needs import Noise, Trace
from shuhari.ports import Model, Task


@register("model", "unordered")
@dataclass
class Unordered:
    """A masked language model sampled in another order than left to right, such as the most confident tokens first
    (LLaDA). A separate role for rollouts, without weights.

    The probability of an answer in such an order is unknown. Its traces and scores have the log-probability of the
    answer from left to right, so `kind` is `bound`, and an importance ratio has to name its score (`score`).
    """

    of: str = "policy"
    """Role of the masked model that is sampled."""
    order: Literal["confidence", "random", "left"] = "confidence"
    """Order in which masks are filled in: `confidence` (the most confident proposals first), `random`, or `left` (to
    right)."""
    at_once: Length = 1
    """Number of tokens filled in at each step; more is faster and less accurate."""
    kind: Literal["exact", "chain", "bound"] = field(default="bound", init=False)
    module: nn.Module = field(init=False, repr=False, default_factory=nn.Module)
    others: Others = field(init=False, repr=False, default_factory=Others)

    def __post_init__(self) -> None:
        check(self)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.of,)

    def build(self, task: Task) -> None:
        """Does nothing: the weights are those of `of`."""

    def bind(self, models: Mapping[str, Model]) -> None:
        """Binds the masked model. Raises TypeError if the role is another kind of model."""
        self.others.take(self.roles, models)
        if find_missing(self.others.models[0], "fill", "chain"):
            kind = type(self.others.models[0]).__name__
            raise TypeError(f"unordered: the model of role {self.of!r} is a {kind}: expected one that fills in masks "
                            f"(models.{self.of}.use = 'masked')")  # fmt: skip

    @property
    def end(self) -> int:
        return self._model.end

    @property
    def text(self) -> Any:
        return self._model.text

    @property
    def limit(self) -> int:
        return self._model.limit

    def encode(self, prompt: Payload) -> Array:
        return self._model.encode(prompt)

    def decode(self, ids: Array) -> str:
        return self._model.decode(ids)

    def __call__(self, batch: Batch) -> Answers:
        """Returns the masked model's scores of these answers."""
        return self._model(batch)

    def sample(self, contexts: Sequence[Array], sampling: Sampling, *, noise: Noise) -> list[Trace]:
        """Samples an answer for each context, filled in by `order`; whole, then cut at `max_new` tokens."""
        model = self._model
        with torch.no_grad():
            y, _ = model.fill(contexts, sampling, noise, self.order, self.at_once)
            wanted = torch.arange(model.length) < model.measure(y, sampling.max_new)[:, None]
            heat = torch.from_numpy(sampling.temperatures(model.length)).expand(len(y), -1)
            logp = torch.zeros(y.shape).masked_scatter(wanted, model.chain(contexts, y, wanted, heat))
        return model.trace(y, logp, sampling)

    @property
    def _model(self) -> Masked:
        found: Any = self.others.models[0]
        return found

"""The labels of messages as rows of a model that learns to score messages.

Source: Zheng et al. 2024, "Online Intrinsic Rewards for Decision Making Agents from Large Language Model Feedback",
section 3.2. Left out: a limit on the number of labels.

Axes: `M` messages, one row each, `P` pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from shuhari.batch import Batch
from shuhari.bounds import Length, Size, check
from shuhari.events import Amended, Event
from shuhari.kernel.registry import register
from shuhari.ports import Ctx


@register("buffer", "annotations")
@dataclass
class Annotations:
    """All labels so far, in `draws` batches each time that new ones have arrived (`annotate` sends them).

    A batch has one row for each of `size` labelled messages, drawn with replacement: `message` [M] and `label` [M, 1],
    for the objective `classification`. Its links `pairs` [P, 2], with `label` 1, 0 or 0.5 for a tie, are a random other
    row for each, for `preference` with `score = "value"` (Bradley-Terry). It never asks for rollouts.
    """

    samples = False
    size: Size = 64
    """Number of messages in a batch, and of pairs."""
    draws: Length = 32
    """Number of batches each time that labels have arrived."""
    column: str = "message"
    """Column with the number of a message, as the model reads it."""
    stream: str = "labels"
    """Name of the weights `weight/<stream>` that the rows carry; losses with this stream learn from them."""
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"labels": {}, "new": False})

    @property
    def stamps(self) -> tuple[str, ...]:
        return self.column, "label", "links/pairs", f"weight/{self.stream}"

    def __post_init__(self) -> None:
        check(self)

    def wanted(self) -> int:
        return 0

    def observe(self, event: Event) -> None:
        if isinstance(event, Amended) and "helpful" in event.columns:
            found = zip(event.ids.tolist(), event.columns["helpful"].tolist(), strict=True)
            self.state["labels"] |= {str(message): x for message, x in found}
            self.state["new"] = True

    def draw(self, ctx: Ctx) -> Iterator[Batch]:
        if self.state["new"]:
            self.state["new"] = False
            for i in range(self.draws):
                yield self._make(ctx.rng("annotations", i))

    def _make(self, rng: torch.Generator) -> Batch:
        known = torch.tensor([int(message) for message in self.state["labels"]])
        value = torch.tensor(list(self.state["labels"].values()))
        drawn = torch.randint(len(known), (self.size,), generator=rng)
        other = torch.randint(self.size, (self.size,), generator=rng)
        label = 0.5 + (value[drawn] - value[drawn][other]).sign() / 2
        columns = {"mask": torch.ones(self.size, 1, dtype=torch.bool), "logp": torch.full((self.size, 1), torch.nan)}
        columns |= {self.column: known[drawn], "label": value[drawn][:, None]}
        index = torch.stack([torch.arange(self.size), other], 1)
        return Batch(columns, stream=self.stream).link("pairs", index, {"label": label})

"""A score for each message, in a table. Left out: messages as texts, of which similar ones would have similar scores.

Axes: `B` rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from shuhari.batch import Batch
from shuhari.bounds import Length, check
from shuhari.kernel.registry import register
from shuhari.models.readout import Values
from shuhari.ports import Task


@register("model", "message_scores")
@dataclass
class MessageScores:
    """A table of scores of messages, which are numbers in 0..messages - 1, at first all 0. `value()` is [B, 1].

    Raises ValueError for a message that is not in the table.
    """

    messages: Length = 256
    """Number of messages."""
    column: str = "message"
    """Column [B] with the number of a message; below 0 it is read as 0, nothing."""
    module: nn.Module = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)

    def build(self, task: Task) -> None:
        self.module = self._table = nn.Embedding(self.messages, 1)
        nn.init.zeros_(self._table.weight)

    def __call__(self, batch: Batch) -> Values:
        message = batch[self.column].long().reshape(-1).clamp(min=0)
        if len(message) and int(message.max()) >= self.messages:
            expected = f"expected less than messages, which is {self.messages}"
            raise ValueError(f"message_scores: column {self.column!r} has {int(message.max())}: {expected}")
        return Values(self._table(message))

"""The labelled messages of a batch as rows and pairs for a model that learns to score messages.

Source: Zheng et al. 2024, "Online Intrinsic Rewards for Decision Making Agents from Large Language Model Feedback",
section 3.2. Left out: labels of messages that the batch does not have.

Axes: `B` rows, `M` messages with a label, `P` pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from shuhari.batch import Batch
from shuhari.bounds import Size, check
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("transform", "pair_messages")
@dataclass
class PairMessages:
    """Stamps `label` [B, 1], the label of a message on one row of each message that has one, NaN elsewhere, for the
    objective `classification`; and links `pairs` [P, 2] of random two of these rows, with `label` 1, 0 or 0.5 for a
    tie, for `preference` with `score = "value"` (Bradley-Terry).

    So each message counts alike, however often it is said. A batch without labels has pairs of a row with itself,
    which teach nothing. Reads `helpful`, as `annotate` stamps it.
    """

    size: Size = 64
    """Number of pairs, drawn with replacement."""
    column: str = "message"
    """Column [B] with the number of what the environment says after a decision."""
    needs: tuple[Need, ...] = field(default=(), init=False)
    stamps = ("label", "links/pairs")

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.column, "helpful"

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        helpful, message = batch["helpful"], batch[self.column].long().reshape(-1)
        first: dict[int, int] = {}
        for row in (~helpful.isnan() & batch.decides).nonzero()[:, 0].tolist():
            first.setdefault(int(message[row]), row)
        rows = torch.tensor(sorted(first.values()) or [0])
        label = torch.full((len(batch), 1), torch.nan)
        label[rows, 0] = helpful[rows]
        drawn = torch.randint(len(rows), (self.size, 2), generator=ctx.rng("pair_messages"))
        index = rows[drawn]
        order = 0.5 + (label[index[:, 0], 0] - label[index[:, 1], 0]).nan_to_num(0.0).sign() / 2
        return batch.put({"label": label}).link("pairs", index, {"label": order})

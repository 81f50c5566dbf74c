"""Classification by a value head: outcome and process reward models.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from shuhari.batch import Batch
from shuhari.bounds import check
from shuhari.data import Info
from shuhari.kernel.registry import register
from shuhari.needs import Need
from shuhari.ports import Ctx


@register("objective", "classification")
@dataclass
class Classification:
    """The cross-entropy of a label y in [0, 1] under the probability p = sigmoid(V), [B, K]: -y log p - (1 - y) log(1 -
    p), in nats; 0 where there is no label (NaN).

    For an outcome reward model a row has one label, at its end (Cobbe et al. 2021, "Training Verifiers to Solve Math
    Word Problems"); for a process reward model each step has one (Lightman et al. 2023, "Let's Verify Step by Step"). A
    y between 0 and 1 is a probability, such as the share of completions from there that are right (Wang et al. 2023,
    "Math-Shepherd", equation 4). With the buffer `labelled`, `reduce = "decision"` of the term is the mean over labels,
    "row" that over answers.

    Info, of the labels: `accuracy` (how often V > 0 as y > 1/2), `positives` (the mean of y), `predicted` (the mean of
    p: the model is calibrated on the whole where the two are equal), `brier` (the mean of (p - y)²: 0 is best, always
    1/2 gives 1/4). Raises ValueError for a label out of range, and for a head with several outputs.
    """

    role: str = "reward"
    """Role of the model with the value head, a name under `[models]`."""
    target: str = "label"
    """Column [B, K] with the labels, NaN where there is none; the buffer `labelled` stamps `label`."""
    couples: Literal["row", "batch"] = field(default="row", init=False)
    stamps = ()

    def __post_init__(self) -> None:
        check(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.target,)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "value", live=True),)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        value, label = batch[self.needs[0]], batch[self.target]
        if value.dim() == 3:
            raise ValueError(f"role {self.role!r} has {value.shape[2]} values: expected a head with one output")
        if bool(((label < 0) | (label > 1)).any()):
            odd = float(label[(label < 0) | (label > 1)][0])
            raise ValueError(f"column {self.target!r} has the label {odd:g}: expected a number in [0, 1], or NaN")
        known, y = ~label.isnan(), label.nan_to_num(0.0)
        loss = torch.where(known, binary_cross_entropy_with_logits(value, y, reduction="none"), 0.0)
        v, y = value.detach()[known], y[known]
        p = v.sigmoid()
        right = (v > 0) == (y > 0.5)
        return loss, {"accuracy": right.float(), "positives": y, "predicted": p, "brier": (p - y).square()}

"""Scores rows sampled at any temperature at temperature 1.

Axes: `B` rows, `K` positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shuhari.batch import Batch
from shuhari.kernel.registry import register
from shuhari.ports import Ctx


@register("transform", "untempered_logp")
@dataclass
class Unheated:
    """Lets the loss score every token at temperature 1, whatever its sampling temperature.

    Stamps `temperature` [B, K] = 1; `logp` stays that of the sampler. Relative to it the policy's own ratio is no
    longer 1 before an update: correct for it (`clip` with behaviour = "old" and `truncate`).
    """

    stamps = ("temperature",)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        return batch.put({"temperature": torch.ones(batch["mask"].shape)})

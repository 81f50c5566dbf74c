"""Draws masks on which masked language models are scored: the same for all compared policies.

Sources: LLaDA (Nie et al. 2025, arXiv 2502.09992, equation 14); GDPO (arXiv 2510.08554), whose noise levels are the
nodes of a quadrature, with one mask each; BGPO (arXiv 2510.11683), whose loss is a sum over draws.

Axes: `B` rows, `n` draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from shuhari.batch import Batch
from shuhari.bounds import Length, check
from shuhari.kernel.registry import register
from shuhari.ports import Ctx

KEYS = 2**53


@register("transform", "draw_masks")
@dataclass
class Masks:
    """Random masks on which masked diffusion models are scored, the same for all compared policies.

    Stamps `mask_key`, `mask_level` and `mask_weight` [B, n]: the key of each draw, the masked share of the answer, in
    (0, 1), and its weight; weights sum to 1. With `quadrature` they are the nodes and weights of Gauss-Legendre
    quadrature on (0, 1), exact if the bound is a polynomial of the level up to degree 2 n - 1. A model masks a fixed
    number of its L tokens, the smallest above level times L (at most L). Put it into [collect] if a loss compares with
    the bound before the update, which is scored before the transforms of a draw.
    """

    n: Length = 1
    """Number of masks drawn for each row; more make the bound less noisy and cost a forward pass each."""
    law: Literal["random", "quadrature"] = "random"
    """Choice of the mask levels: `random`, uniform with equal weights, or `quadrature`, fixed Gauss-Legendre nodes
    (GDPO)."""
    needs = ()
    reads = ()
    stamps = ("mask_key", "mask_level", "mask_weight")

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        noise = ctx.noise(batch, "masks")
        key = (noise.uniform(0, self.n) * KEYS).long()
        if self.law == "random":
            level, weight = noise.uniform(1, self.n), torch.full((len(batch), self.n), 1 / self.n)
        else:
            nodes, weights = np.polynomial.legendre.leggauss(self.n)
            level = torch.from_numpy((nodes + 1) / 2).expand(len(batch), -1)
            weight = torch.from_numpy(weights / 2).float().expand(len(batch), -1)
        return batch.put({"mask_key": key, "mask_level": level.clone(), "mask_weight": weight.clone()})

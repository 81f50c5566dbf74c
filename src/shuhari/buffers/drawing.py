"""Rows drawn in proportion to weights, shared by `replay` by priority and `offline` by a column.

Axes: `C` rows to draw from.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shuhari.data import Array


def proportional(weight: Array, n: int, rng: torch.Generator) -> Tensor:
    """Draws [n] rows independently, with probability proportional to weight [C] >= 0, not all of them 0."""
    total = np.cumsum(weight, dtype=np.float64)
    u = torch.rand(n, generator=rng, dtype=torch.float64).numpy() * total[-1]
    rows = np.searchsorted(total, u, side="right")
    last = int(np.flatnonzero(weight)[-1])  # u may round up to the total
    return torch.from_numpy(np.minimum(rows, last))

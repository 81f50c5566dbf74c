"""Running mean and variance of a model's inputs, as buffers of its module: they are saved, copied and exported with it.

Leaves out exponential forgetting, and images, which are scaled by a constant. Axes: `n` rows, `D` numbers of a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

PRIOR = 1e-4  # initial count, with mean 0 and variance 1, as in Gymnasium and Stable-Baselines3
TINY = 1e-8
LIMIT = 10.0

Parts = tuple[Tensor, Tensor, Tensor]  # rows, mean [D], variance [D] of some rows


class Moments(nn.Module):
    """Count, mean and variance of all rows so far, in double precision; a call normalises by the current ones."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(PRIOR, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self._now = self._buffers  # not the tensors: right after any copy, load or functional call

    def __call__(self, x: Tensor) -> Tensor:
        """Normalises [n, D] -> (x - mean) / sqrt(var + 1e-8), clipped to ±10."""
        _, mean, var = self._all()
        return ((x - mean.float()) * (var + TINY).rsqrt().float()).clamp(-LIMIT, LIMIT)

    forward = __call__

    @property
    def std(self) -> Tensor:
        """Returns sqrt(var + 1e-8)."""
        return (self._all()[2] + TINY).sqrt()

    @property
    def empty(self) -> bool:
        """Whether no row has been counted yet."""
        return float(self._all()[0]) <= PRIOR

    @torch.no_grad()
    def take(self, rows: Parts) -> None:
        """Updates the moments with these rows."""
        here = self._all()
        for to, x in zip(here, merge_moments(here, rows), strict=True):
            to.copy_(x)

    def _all(self) -> Parts:
        now: Any = self._now
        return now["count"], now["mean"], now["var"]


def moments(x: Tensor) -> Parts:
    """Returns the moments of x [n, D], n > 0."""
    x = x.double()
    return torch.tensor(float(len(x)), dtype=torch.float64), x.mean(0), x.var(0, correction=0)


def merge_moments(a: Parts, b: Parts) -> Parts:
    """Returns the moments of the rows of both (Chan et al. 1979, "Updating formulae and a pairwise algorithm for
    computing sample variances", equations 2.1)."""
    (n, mean, var), (m, other, wide) = a, b
    total, gap = n + m, other - mean
    return total, mean + gap * (m / total), (n * var + m * wide + gap.square() * (n * m / total)) / total

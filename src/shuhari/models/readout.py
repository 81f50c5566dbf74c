"""The output of a critic, numbers or logits over bins: how values are read, and how they are fitted to scalar targets.

Axes: `B` rows, `K` positions, `n` members of an ensemble, `m` bins, `S` numbers of a distribution; of `Bins` all else
is leading and kept. A target is a number, spread over the bins that it teaches, or (C51) a distribution of the return.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from shuhari.bounds import AtLeast0, Bounds, check
from shuhari.models.quantiles import Quantiles, existing_quantiles


@dataclass(frozen=True)
class Bins:
    """Equal bins over a range of values, as a critic's output: it gives logits [m], and the value is the mean of their
    centres (Farebrother et al. 2024, "Stop Regressing", section 3).

    Targets outside the range are clamped to it. Raises ValueError for an empty range.
    """

    low: float
    """Lower end of the range, which should be wider than the values (returns)."""
    high: float
    """Upper end of the range, which should be wider than the values (returns)."""
    n: Annotated[int, Bounds(2, most=10**8)] = 51
    """Number of bins, m."""
    sigma: AtLeast0 = 0.75
    """Standard deviation by which a target is smoothed, in widths of a bin (HL-Gauss: 0.75); 0 splits it between the
    two nearest centres with the same mean (two-hot)."""

    def __post_init__(self) -> None:
        check(self)
        if not self.low < self.high:
            raise ValueError(f"bins: low is {self.low}, high {self.high}: expected low < high")

    @property
    def width(self) -> float:
        return (self.high - self.low) / self.n

    @cached_property
    def edges(self) -> Tensor:
        return torch.linspace(self.low, self.high, self.n + 1)

    @cached_property
    def centres(self) -> Tensor:
        return (self.edges[1:] + self.edges[:-1]) / 2

    def value(self, logits: Tensor) -> Tensor:
        """Maps [..., m] -> [...] the mean."""
        return logits.softmax(-1) @ self.centres

    def target(self, y: Tensor) -> Tensor:
        """Maps [...] -> [..., m] the target probabilities of the number y: a normal of mean y and deviation sigma
        widths, truncated to the range; or the two nearest centres."""
        if self.sigma:
            y = y.clamp(self.low, self.high)
            below = torch.special.ndtr((self.edges - y[..., None]) / (self.sigma * self.width))  # [..., m + 1]
            return below.diff(dim=-1) / (below[..., -1:] - below[..., :1])
        place = self._place(y)
        return (1 - (place[..., None] - torch.arange(self.n)).abs()).clamp(min=0.0)

    def project(self, share: Tensor, y: Tensor) -> Tensor:
        """[..., S], [..., S] -> [..., m] the probabilities that stand for a distribution over the numbers y: with
        sigma = 0 the projection of C51 onto atoms at the centres (Bellemare et al. 2017, "A Distributional Perspective
        on Reinforcement Learning", equation 7). ValueError for another sigma."""
        if self.sigma:
            raise ValueError(f"loss = 'categorical' shares each atom between two centres, and these bins have sigma = "
                             f"{self.sigma}: set sigma = 0 of the bins")  # fmt: skip
        place = self._place(y)
        lower = place.floor().clamp(max=self.n - 2)
        upper = share * (place - lower)
        out, at = y.new_zeros(*y.shape[:-1], self.n), lower.long()
        return out.scatter_add(-1, at, share - upper).scatter_add(-1, at + 1, upper)

    def _place(self, y: Tensor) -> Tensor:
        """Maps [...] -> [...] the place of numbers among the centres, in widths from the first one."""
        return ((y - self.low) / self.width - 0.5).clamp(0, self.n - 1)

    def fit(self, logits: Tensor, y: Tensor) -> Tensor:
        """Maps [..., m], [...] -> [...] the cross-entropy of the logits to the targets of y, without gradient to y."""
        return -(self.target(y.detach()) * logits.log_softmax(-1)).sum(-1)


def existing(logits: Tensor | None) -> Tensor:
    """Returns the logits of a critic. Raises ValueError, with the setting to add, if it has none."""
    if logits is None:
        raise ValueError("loss = 'cross_entropy' (and 'categorical') fits a distribution over bins, and this critic "
                         "has none: set bins = {low = .., high = ..} of its model")  # fmt: skip
    return logits


class Values:
    """The output of a critic: `value()` [B, K], or [B, K, n] of an ensemble; with bins `logits()`, with quantiles
    `quantiles()`, [B, K, m] or [B, K, n, m], too."""

    __slots__ = ("_out", "_read")

    def __init__(self, out: Tensor, read: Bins | Quantiles | None = None) -> None:
        self._out, self._read = out, read

    def value(self) -> Tensor:
        return self._out if self._read is None else self._read.value(self._out)

    def logits(self) -> Tensor:
        return existing(self._out if isinstance(self._read, Bins) else None)

    def quantiles(self) -> Tensor:
        return existing_quantiles(self._out if isinstance(self._read, Quantiles) else None)

    def at(self, index: Tensor) -> Values:
        """The positions `index` [N] of the flattened [B * K]."""
        return Values(self._out.flatten(0, 1)[index], self._read)

"""The output of a critic: numbers, or logits over bins: how these are read, and how they are fitted to scalar targets.

Axes: `B` rows, `K` positions, `n` members of an ensemble, `m` bins; of `Bins` all else is leading and kept. Leaves out
distributions of the return itself (C51, quantiles): a target is a number here, spread over the bins that it teaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from shuhari.bounds import AtLeast0, Bounds, check


@dataclass(frozen=True)
class Bins:
    """Bins of one width over a range of values, as a critic's output: it gives logits [m], and the value is the mean of
    their centres (Farebrother et al. 2024, "Stop Regressing", section 3).

    Targets outside of the range count as at its end. ValueError for a range that is empty."""

    low: float
    """Lower end of the range, which should be wider than the values (returns)."""
    high: float
    """Upper end of the range, which should be wider than the values (returns)."""
    n: Annotated[int, Bounds(2, most=10**8)] = 51
    """Number of bins, m."""
    sigma: AtLeast0 = 0.75
    """Standard deviation by which a target is smeared, in widths of a bin (HL-Gauss: 0.75); 0 shares it between the two
    nearest centres, which keep its mean (two-hot)."""

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
        """[..., m] -> [...] the mean."""
        return logits.softmax(-1) @ self.centres

    def target(self, y: Tensor) -> Tensor:
        """[...] -> [..., m] the probabilities that stand for the number y: those of a normal of mean y and deviation
        sigma widths, within the range; or of the two nearest centres."""
        if self.sigma:
            y = y.clamp(self.low, self.high)
            below = torch.special.ndtr((self.edges - y[..., None]) / (self.sigma * self.width))  # [..., m + 1]
            return below.diff(dim=-1) / (below[..., -1:] - below[..., :1])
        place = ((y - self.low) / self.width - 0.5).clamp(0, self.n - 1)  # in widths from the first centre
        return (1 - (place[..., None] - torch.arange(self.n)).abs()).clamp(min=0.0)

    def fit(self, logits: Tensor, y: Tensor) -> Tensor:
        """[..., m], [...] -> [...] the cross-entropy of the logits to what stands for y, which gets no gradient."""
        return -(self.target(y.detach()) * logits.log_softmax(-1)).sum(-1)


def existing(logits: Tensor | None) -> Tensor:
    """The logits of a critic; ValueError, with the setting that mends it, for one without."""
    if logits is None:
        raise ValueError("loss = 'cross_entropy' fits a distribution over bins, and this critic has none: set "
                         "bins = {low = .., high = ..} of its model")  # fmt: skip
    return logits


class Values:
    """The output of a critic: `value()` [B, K], or [B, K, n] of an ensemble; with `bins`, `logits()` [B, K, m] too."""

    __slots__ = ("_bins", "_out")

    def __init__(self, out: Tensor, bins: Bins | None = None) -> None:
        self._out, self._bins = out, bins

    def value(self) -> Tensor:
        return self._out if self._bins is None else self._bins.value(self._out)

    def logits(self) -> Tensor:
        return existing(None if self._bins is None else self._out)

    def at(self, index: Tensor) -> Values:
        """The positions `index` [N] of the flattened [B * K]."""
        return Values(self._out.flatten(0, 1)[index], self._bins)

"""The output of a critic as quantiles of the return, and how they are fitted to samples.

Axes: `m` quantiles, `S` samples; all other axes are leading and kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from shuhari.bounds import Length, Positive, check


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of the return as a critic's output, at the midpoints of n equal shares; the value is their mean
    (QR-DQN: Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression")."""

    n: Length = 51
    """Number of quantiles, at the midpoints of equal shares of the distribution."""
    threshold: Positive = 1.0
    """Error, in units of the value, up to which the Huber loss is quadratic, and linear beyond (the paper's kappa:
    1)."""

    def __post_init__(self) -> None:
        check(self)

    def value(self, quantiles: Tensor) -> Tensor:
        """Maps [..., m] -> [...] the mean."""
        return quantiles.mean(-1)

    def fit(self, quantiles: Tensor, samples: Tensor) -> Tensor:
        """Maps [..., m], [..., S] -> [...] the sum over quantiles of the mean over samples, which get no gradient, of
        |share - (sample < quantile)| huber / threshold. Sum and mean are those of algorithm 1. Its equation 10 does not
        divide by the threshold; dividing, so that the threshold does not scale the gradient of large errors, is as in
        Dabney et al. 2018, "Implicit Quantile Networks for Distributional Reinforcement Learning" (section 2.3). At the
        papers' threshold of 1 both are the same."""
        ours, theirs = torch.broadcast_tensors(quantiles[..., None], samples.detach()[..., None, :])  # [..., m, S]
        share = (torch.arange(self.n)[:, None] + 0.5) / self.n
        side = (share - (theirs < ours).to(ours.dtype)).abs()
        error = F.huber_loss(ours, theirs, reduction="none", delta=self.threshold) / self.threshold
        return (side * error).mean(-1).sum(-1)


def existing_quantiles(quantiles: Tensor | None) -> Tensor:
    """The quantiles of a critic; ValueError, with the setting that mends it, for one without."""
    if quantiles is None:
        raise ValueError("loss = 'quantile' fits quantiles of the return, and this net has none: set "
                         "quantiles = {n = ..} of the model of each role that the loss reads")  # fmt: skip
    return quantiles

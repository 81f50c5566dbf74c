"""Nets with batch renormalisation before every layer, as CrossQ has them in place of target networks.

Ioffe 2017, "Batch Renormalization: Towards Reducing Minibatch Dependence in Batch-Normalized Models"; Bhatt et al.
2024, "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample Efficiency and Simplicity". Leaves
out the gradual widening of the bounds of the correction, which begins at once when the warm-up is over, as in
Stable-Baselines3's contributions.

Axes: `B` rows, `n` members, `D` inputs of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from shuhari.bounds import Count, PositiveShare, check
from shuhari.models.mlp import activation_of, apply_layer

EPSILON = 1e-3
SCALE, SHIFT = 3.0, 5.0  # bounds of the correction: r in [1 / 3, 3], d in [-5, 5]

Seen = list[tuple[Tensor, Tensor]]  # of each layer the mean and the variance of a batch, [n, 1, D]


@dataclass(frozen=True)
class Renorm:
    """Batch renormalisation before every layer of a net: a loss that trains it normalises by its batch, all else by
    running moments."""

    momentum: PositiveShare = 0.01
    """Share of the way to a batch's moments that the running ones go at each update (CrossQ: 0.01)."""
    warmup: Count = 100_000
    """Number of updates for which a loss normalises by its batch alone; later it is corrected towards the running
    moments."""

    def __post_init__(self) -> None:
        check(self)


class Norm(nn.Module):
    """[n, B, D] -> the same, normalised over B, then scaled and shifted by parameters."""

    mean: Tensor  # the running ones, [n, 1, D]
    var: Tensor

    def __init__(self, n: int, size: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(n, 1, size)), nn.Parameter(torch.zeros(n, 1, size))
        self.register_buffer("mean", torch.zeros(n, 1, size))
        self.register_buffer("var", torch.ones(n, 1, size))

    def __call__(self, x: Tensor, seen: Seen | None = None, *, corrects: bool = False) -> Tensor:
        """Normalise by the running moments, or with `seen` by the moments of x, which are appended there. corrects:
        x · r + d, the step from the batch's moments to the running ones, within bounds and without gradient (Ioffe
        2017, algorithm 1)."""
        std = (self.var + EPSILON).sqrt()
        if seen is None:
            return torch.addcmul(self.shift, (x - self.mean) / std, self.scale)
        var, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
        seen.append((mean.detach(), var.detach()))
        own = (var + EPSILON).sqrt()
        y = (x - mean) / own
        if corrects:
            r = (own.detach() / std).clamp(1 / SCALE, SCALE)
            y = y * r + ((mean.detach() - self.mean) / std).clamp(-SHIFT, SHIFT)
        return torch.addcmul(self.shift, y, self.scale)

    forward = __call__


class Renormed(nn.Module):
    """n nets over the same rows: [B, sizes[0]] -> [n, B, sizes[-1]], as `Ensemble`, with a `Norm` before each layer."""

    updates: Tensor  # how many batches the running moments have met

    def __init__(self, n: int, sizes: Sequence[int], activation: str, how: Renorm) -> None:
        super().__init__()
        self.n, self.how, self._act = n, how, activation_of(activation)
        self.weights, self.biases, self.norms = nn.ParameterList(), nn.ParameterList(), nn.ModuleList()
        for a, b in pairwise(sizes):
            k = 1 / math.sqrt(a)
            self.weights.append(nn.Parameter(torch.empty(n, a, b).uniform_(-k, k)))
            self.biases.append(nn.Parameter(torch.empty(n, 1, b).uniform_(-k, k)))
            self.norms.append(Norm(n, a))
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    def __call__(self, x: Tensor, seen: Seen | None = None) -> Tensor:
        """Normalise by running moments, or with `seen` by the moments of these rows, which are appended there."""
        y, last = x.expand(self.n, -1, -1), len(self.norms) - 1
        corrects = seen is not None and int(self.updates) > self.how.warmup
        for i, norm in enumerate(self.norms):
            y = apply_layer(norm(y, seen, corrects=corrects), self.weights[i], self.biases[i])
            if i < last:
                y = self._act(y)
        return y

    forward = __call__

    @torch.no_grad()
    def count(self, seen: Seen) -> None:
        """Move the running moments towards a batch's moments."""
        for norm, (mean, var) in zip(self.norms, seen, strict=True):
            for to, x in ((norm.mean, mean), (norm.var, var)):
                to.lerp_(x, self.how.momentum)  # type: ignore[operator]
        self.updates += 1


class Pending:
    """A net that a loss calls, and the moments of the last batch that it was called with. They enter the running
    moments once an update is over, so that they count once however often the loss is evaluated. `body` None: no such
    net."""

    def __init__(self, body: Renormed | None) -> None:
        self.body, self.seen = body, Seen()

    def __call__(self, x: Tensor) -> Tensor:
        """[B, D] -> [n, B, outputs] by the moments of these rows."""
        assert self.body is not None
        seen = Seen()
        out = self.body(x, seen)
        if torch.is_grad_enabled():
            self.seen = seen
        return out

    def settle(self) -> None:
        """An update is over."""
        if self.body is not None and self.seen:
            self.body.count(self.seen)
            self.seen = Seen()

"""The body of a Q-network with two streams (dueling), with noise on its weights (noisy nets), or with both.

Wang et al. 2016, "Dueling Network Architectures for Deep Reinforcement Learning"; Fortunato et al. 2018, "Noisy
Networks for Exploration". Leaves out noise that is drawn for every weight: it is factorised here, as in Rainbow (Hessel
et al. 2018, "Rainbow: Combining Improvements in Deep Reinforcement Learning").

Axes: `B` rows, `A` actions, `m` numbers that an action has (1, or bins or quantiles), `E` numbers of noise of a body.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shuhari.models.mlp import activation_of


class Layer(nn.Module):
    """[B, inputs] -> [B, outputs], linear, initialised like `nn.Linear`; `norm`: then a layer normalisation.

    sigma: weights and biases are mean + spread · noise, factorised: that of a weight is f(e_out) f(e_in), that of a
    bias f(e_out), f(x) = sign(x) sqrt|x| (Fortunato et al. 2018, equations 10 and 11); spread begins at sigma /
    sqrt(inputs) (section 3.2). None: there is none."""

    def __init__(self, inputs: int, outputs: int, norm: bool = False, sigma: float | None = None) -> None:
        super().__init__()
        self.mean = nn.Linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs) if norm else None
        self.spread = self.spread_bias = None
        if sigma is not None:
            first = sigma / math.sqrt(inputs)
            self.spread = nn.Parameter(torch.full((outputs, inputs), first))
            self.spread_bias = nn.Parameter(torch.full((outputs,), first))

    @property
    def noise(self) -> tuple[int, int]:
        """How many numbers of noise it takes: for its inputs, and for its outputs."""
        return self.mean.in_features, self.mean.out_features

    def __call__(self, x: Tensor, before: Tensor | None = None, behind: Tensor | None = None) -> Tensor:
        """before, behind: f of the noise for inputs and outputs, [inputs] and [outputs], or of each row [B, ...]; None:
        the means alone."""
        y = F.linear(x, self.mean.weight, self.mean.bias)
        if before is not None and behind is not None and self.spread is not None:
            y = torch.addcmul(y, behind, F.linear(x * before, self.spread, self.spread_bias))
        return y if self.norm is None else self.norm(y)

    forward = __call__


def shrink(x: Tensor) -> Tensor:
    """sign(x) sqrt|x|."""
    return x.sign() * x.abs().sqrt()


class Streams(nn.Module):
    """Features [B, sizes[0]] -> [B, A * m]: hidden layers of the other sizes, and a linear readout of each action.

    dueling: the last hidden layer is there twice, for the value v [m] of a state and the advantages a [A, m], and an
    action has v + a - mean of a (Wang et al. 2016, equation 9); of a distribution over bins these are its logits
    (Rainbow). sigma: all layers are noisy. `noise` is E, how many standard normal numbers one draw of it takes."""

    def __init__(
        self, sizes: Sequence[int], actions: int, m: int = 1, activation: str = "relu", norm: bool = False,
        dueling: bool = False, sigma: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._act, self._of = activation_of(activation), (actions, m)
        split = len(sizes) - 1 if dueling and len(sizes) > 1 else len(sizes)

        def made(sizes: Sequence[int], outputs: int = 0) -> nn.ModuleList:
            hidden = [Layer(a, b, norm, sigma) for a, b in pairwise(sizes)]
            return nn.ModuleList([*hidden, *([Layer(sizes[-1], outputs, sigma=sigma)] if outputs else [])])

        self.trunk = made(sizes[:split])
        self.actions = made(sizes[split - 1 :], actions * m)
        self.value = made(sizes[split - 1 :], m) if dueling else None
        layers = (*self.trunk, *self.actions, *(self.value or ()))
        self._sizes = [*chain.from_iterable(layer.noise for layer in layers)] if sigma is not None else []
        self.noise = sum(self._sizes)

    def __call__(self, x: Tensor, eps: Tensor | None = None) -> Tensor:
        """eps: standard normal numbers, [E] for all rows or [B, E] for each; None: the means of the weights."""
        drawn = iter(shrink(eps).split(self._sizes, -1)) if eps is not None else None
        for layer in self.trunk:
            x = self._act(self._ask(layer, x, drawn))
        out = self._read(self.actions, x, drawn)
        if self.value is None:
            return out
        advantage, value = out.unflatten(-1, self._of), self._read(self.value, x, drawn)
        return (value.unsqueeze(-2) + advantage - advantage.mean(-2, keepdim=True)).flatten(-2)

    forward = __call__

    def _read(self, layers: nn.ModuleList, x: Tensor, drawn: Iterator[Tensor] | None) -> Tensor:
        *hidden, last = layers
        for layer in hidden:
            x = self._act(self._ask(layer, x, drawn))
        return self._ask(last, x, drawn)

    @staticmethod
    def _ask(layer: nn.Module, x: Tensor, drawn: Iterator[Tensor] | None) -> Tensor:
        out: Tensor = layer(x) if drawn is None else layer(x, next(drawn), next(drawn))
        return out

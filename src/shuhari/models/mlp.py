"""Multi-layer perceptrons: one net, and an ensemble of nets in stacked parameters.

Both skip the module machinery in `__call__` (a third of the time of a net of width 64), so forward hooks do not fire.
Leaves out dropout and convolutions. Axes: `B` rows, `n` members.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shuhari.data import nearest

Activation: TypeAlias = Literal["tanh", "relu", "silu", "gelu", "elu"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # in place if the gradient needs only the result
    "tanh": torch.tanh_,
    "relu": torch.relu_,
    "silu": F.silu,
    "gelu": F.gelu,
    "elu": F.elu,
}


def activation_of(name: str) -> Callable[[Tensor], Tensor]:
    """Returns the activation `name`, which may work in place. Raises ValueError with the nearest name if there is
    none."""
    try:
        return ACTIVATIONS[name]
    except KeyError:
        raise ValueError(f"no activation {name!r}; {nearest(name, ACTIVATIONS)}") from None


class Mlp(nn.Module):
    """A module: [..., sizes[0]] -> [..., sizes[-1]], with `activation` between the layers.

    `gain`: orthogonal weights, sqrt(2) in hidden layers and `gain` in the last, biases 0 (PPO's initialisation: Huang
    et al. 2022, "The 37 Implementation Details of PPO", detail 2); None: that of `nn.Linear`. `norm`: each hidden layer
    has its own layer normalisation before the activation (as critics on recorded data do: Ball et al. 2023, "Efficient
    Online Reinforcement Learning with Offline Data").
    """

    def __init__(
        self, sizes: Sequence[int], activation: str = "tanh", gain: float | None = None, norm: bool = False
    ) -> None:
        super().__init__()
        layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        self.layers = nn.ModuleList(layers)
        self._activation = activation_of(activation)
        # the dicts behind the layers, not the tensors: right after any copy, load or functional call
        self._hidden = [layer._parameters for layer in layers[:-1]]
        self._last = layers[-1]._parameters
        self.norms = nn.ModuleList(nn.LayerNorm(b) for b in sizes[1:-1]) if norm else None
        self._norms = None if self.norms is None else [n._parameters for n in self.norms]
        if gain is not None:
            for i, layer in enumerate(layers):
                nn.init.orthogonal_(layer.weight, gain if i == len(sizes) - 2 else math.sqrt(2))
                nn.init.zeros_(layer.bias)

    def __call__(self, x: Tensor) -> Tensor:
        act = self._activation
        if self._norms is not None:
            for p, n in zip(self._hidden, self._norms, strict=True):
                y = F.linear(x, p["weight"], p["bias"])  # type: ignore[arg-type]
                x = act(F.layer_norm(y, y.shape[-1:], n["weight"], n["bias"]))
            return F.linear(x, self._last["weight"], self._last["bias"])  # type: ignore[arg-type]
        for p in self._hidden:
            x = act(F.linear(x, p["weight"], p["bias"]))  # type: ignore[arg-type]
        return F.linear(x, self._last["weight"], self._last["bias"])  # type: ignore[arg-type]

    forward = __call__


class Ensemble(nn.Module):
    """n independent nets on the same rows: [B, sizes[0]] -> [n, B, sizes[-1]], initialised like `nn.Linear`. `norm` as
    in `Mlp`.

    A layer's weights are [n, in, out], so that all products of both passes, and all gradients, are contiguous.
    """

    def __init__(self, n: int, sizes: Sequence[int], activation: str = "relu", norm: bool = False) -> None:
        super().__init__()
        self.n = n
        self._activation = activation_of(activation)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for a, b in pairwise(sizes):
            k = 1 / math.sqrt(a)
            self.weights.append(nn.Parameter(torch.empty(n, a, b).uniform_(-k, k)))
            self.biases.append(nn.Parameter(torch.empty(n, 1, b).uniform_(-k, k)))
        self._w, self._b = self.weights._parameters, self.biases._parameters
        self.scales = self.shifts = None
        if norm:  # one for each hidden layer of each member
            self.scales = nn.ParameterList(nn.Parameter(torch.ones(n, 1, b)) for b in sizes[1:-1])
            self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(n, 1, b)) for b in sizes[1:-1])

    def __call__(self, x: Tensor) -> Tensor:
        y, last = x.expand(self.n, -1, -1), len(self._w) - 1
        for i, (w, b) in enumerate(zip(self._w.values(), self._b.values(), strict=True)):
            y = apply_layer(y, w, b)  # type: ignore[arg-type]
            if i < last and self.scales is not None:
                y = torch.addcmul(self.shifts[i], F.layer_norm(y, y.shape[-1:]), self.scales[i])  # type: ignore[index]
            if i < last:
                y = self._activation(y)
        return y

    forward = __call__


def apply_layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """[n, B, in], [n, in, out], [n, 1, out] -> [n, B, out]. One output is a sum of products: as a batch of matrices
    times vectors it takes several times as long, in both passes."""
    return (x * w.mT).sum(2, keepdim=True) + b if w.shape[2] == 1 else torch.baddbmm(b, x, w)

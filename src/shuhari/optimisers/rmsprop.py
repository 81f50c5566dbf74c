"""RMSprop, the optimiser of A3C and A2C. Leaves out momentum and centring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import nn

from shuhari.bounds import AtLeast0, Bounds, check
from shuhari.data import Info, Number
from shuhari.events import Event, When
from shuhari.kernel.registry import register
from shuhari.optimisers.memory import FirstOrder, Piece, Total, resolve
from shuhari.ports import Evaluate


@register("optimiser", "rmsprop")
@dataclass
class RMSprop:
    """RMSprop: s <- alpha s + (1 - alpha) g², p <- p - lr g / (sqrt(s) + eps), s from 0 (Tieleman and Hinton 2012)."""

    lr: Annotated[Number, Bounds(0)] = 1e-3
    """Learning rate, or its schedule."""
    clip: Annotated[Number, Bounds(0)] = 0.0
    """Largest global gradient norm, to which larger ones are scaled down; 0 is off."""
    reset: When | None = None
    """Event at which the average of squares is cleared, such as `{on = "step"}`; None never clears it."""
    alpha: Annotated[float, Bounds(0, 1, open="high")] = 0.99
    """Decay rate of the average of squared gradients, in [0, 1)."""
    eps: AtLeast0 = 1e-5
    """Number that keeps the denominator above 0."""
    eps_inside: bool = False
    """Put `eps` inside the root, as A3C's paper (Mnih et al. 2016) and TensorFlow do, instead of outside."""
    weight_decay: Annotated[Number, Bounds(0)] = 0.0
    """Weight decay, as an L2 penalty in the gradient; 0 is off."""

    def __post_init__(self) -> None:
        check(self)
        self._frame = FirstOrder("square")

    def bind(self, params: Sequence[nn.Parameter]) -> None:
        """Takes these parameters; see `FirstOrder.bind`."""
        self._frame.bind(params)

    def share(self, total: Total) -> None:
        """Declares that the parameters are shards: `total` sums a number over the processes that have the others."""
        self._frame.total = total

    def step(self, evaluate: Evaluate, at: float) -> Info:
        """Runs one step; see `FirstOrder.step`."""
        return self._frame.step(evaluate, at, self.lr, self.clip, self._move)

    def observe(self, event: Event) -> None:
        self._frame.observe(self.reset, event)

    @property
    def state(self) -> dict[str, Any]:
        return self._frame.state

    @state.setter
    def state(self, tree: dict[str, Any]) -> None:
        self._frame.state = tree

    def _move(self, piece: Piece, lr: float, at: float) -> None:
        params, grads, (square,) = piece.params, piece.grads, piece.kept
        if decay := resolve(self.weight_decay, at):
            grads = list(torch._foreach_add(grads, params, alpha=decay))
        torch._foreach_mul_(square, self.alpha)
        torch._foreach_addcmul_(square, grads, grads, 1 - self.alpha)
        if self.eps_inside:
            root = torch._foreach_sqrt(torch._foreach_add(square, self.eps))
        else:
            root = torch._foreach_add(torch._foreach_sqrt(square), self.eps)
        torch._foreach_addcdiv_(params, grads, root, -lr)

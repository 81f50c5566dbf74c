"""Adam and AdamW on fused kernels.

Calls the fused kernel directly: for nets 64 wide a step costs a quarter of one through `torch.optim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from torch import nn

from shuhari.bounds import AtLeast0, Bounds, check
from shuhari.data import Info, Number
from shuhari.events import Event, When
from shuhari.optimisers.memory import FirstOrder, Piece, now
from shuhari.ports import Evaluate
from shuhari.registry import register

_Beta = Annotated[float, Bounds(0, 1, open="high")]


@register("optimiser", "adam", decoupled=False)
@register("optimiser", "adamw")
@dataclass
class AdamW:
    """AdamW (Loshchilov and Hutter 2019); as `adam`, Adam (Kingma and Ba 2015), whose `weight_decay` is an L2 penalty
    that is added to the gradient: `decoupled` false.

    `clip`: the largest global gradient norm, 0 is off. `reset`: when the memory is cleared, `{on = "step"}` or, beside
    a `follow` rule that hears the same, `{on = "plateau", ..}`; schedules go on."""

    lr: Annotated[Number, Bounds(0)] = 1e-3
    clip: Annotated[Number, Bounds(0)] = 0.0
    reset: When | None = None
    betas: tuple[_Beta, _Beta] = (0.9, 0.999)
    eps: AtLeast0 = 1e-8
    weight_decay: Annotated[Number, Bounds(0)] = 0.0
    decoupled: bool = True

    def __post_init__(self) -> None:
        check(self)
        self._frame = FirstOrder("mean", "square")

    def bind(self, params: Sequence[nn.Parameter]) -> None:
        """Own these parameters; see `FirstOrder.bind`."""
        self._frame.bind(params)

    def step(self, evaluate: Evaluate, at: float) -> Info:
        """One step; see `FirstOrder.step`."""
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
        settings = {"lr": lr, "beta1": self.betas[0], "beta2": self.betas[1], "eps": self.eps}
        settings |= {"weight_decay": now(self.weight_decay, at), "amsgrad": False, "maximize": False}
        kernel: Any = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        kernel(piece.params, piece.grads, *piece.kept, [], piece.steps, **settings)


Adam = partial(AdamW, decoupled=False)  # as `adam` makes it

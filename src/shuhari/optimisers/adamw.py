"""Adam and AdamW on fused kernels.

Calls the fused kernel directly: for nets of width 64 a step costs a quarter of one through `torch.optim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from shuhari.bounds import AtLeast0, Bounds, check
from shuhari.data import Info, Number
from shuhari.events import Event, When
from shuhari.kernel.registry import register
from shuhari.optimisers.memory import FirstOrder, Piece, Total, resolve
from shuhari.ports import Evaluate

_Beta = Annotated[float, Bounds(0, 1, open="high")]


@register("optimiser", "adam", decoupled=False)
@register("optimiser", "adamw")
@dataclass
class AdamW:
    """AdamW (Loshchilov and Hutter 2019), or as `adam` Adam (Kingma and Ba 2015), on fused kernels.

    With `store` = "bfloat16" the optimiser keeps exact weights while the model has rounded ones, so that steps too
    small for bfloat16 add up (Micikevicius et al. 2018, section 3.1); weights changed from outside are used as they
    are.
    """

    lr: Annotated[Number, Bounds(0)] = 1e-3
    """Learning rate, or its schedule."""
    clip: Annotated[Number, Bounds(0)] = 0.0
    """Largest global gradient norm, to which larger ones are scaled down; 0 is off."""
    reset: When | None = None
    """Event at which the moments are cleared, such as `{on = "step"}`, or `{on = "plateau"}` with a `follow` rule on
    the same event; schedules continue. None never clears them."""
    betas: tuple[_Beta, _Beta] = (0.9, 0.999)
    """Decay rates of the first and the second moment, each in [0, 1)."""
    eps: AtLeast0 = 1e-8
    """Number added to the root of the second moment; a larger one damps steps with tiny gradients."""
    weight_decay: Annotated[Number, Bounds(0)] = 0.0
    """Weight decay, multiplied by the learning rate; 0 is off."""
    decoupled: bool = True
    """Apply weight decay to the weights themselves (AdamW); false adds it to the gradient as an L2 penalty (Adam)."""
    store: Literal["", "bfloat16"] = ""
    """Number format that weights are rounded to after each step, as a model served in that format has them: `bfloat16`,
    or "" for none."""

    def __post_init__(self) -> None:
        check(self)
        self._frame = FirstOrder("mean", "square", *(["weights"] if self.store else []))

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
        settings = {"lr": lr, "beta1": self.betas[0], "beta2": self.betas[1], "eps": self.eps}
        settings |= {"weight_decay": resolve(self.weight_decay, at), "amsgrad": False, "maximize": False}
        kernel: Any = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        mean, square, *weights = piece.kept
        exact = _exact(piece.params, *weights) if weights else piece.params
        kernel(exact, piece.grads, mean, square, [], piece.steps, **settings)
        if weights:
            torch._foreach_copy_(piece.params, [x.bfloat16() for x in exact])


def _exact(params: list[Tensor], kept: list[Tensor]) -> list[Tensor]:
    """Returns the weights before rounding; one that no longer equals its rounded copy was set from outside and is used
    as is."""
    for mine, p in zip(kept, params, strict=True):
        torch.where(mine.bfloat16() == p, mine, p, out=mine)
    return kept


Adam = partial(AdamW, decoupled=False)  # as registered under `adam`

"""Adam and AdamW on fused kernels.

Calls the fused kernel directly: for nets 64 wide a step costs a quarter of one through `torch.optim`.
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
    """AdamW (Loshchilov and Hutter 2019); as `adam`, Adam (Kingma and Ba 2015), whose `weight_decay` is an L2 penalty
    that is added to the gradient: `decoupled` false.

    `clip`: the largest global gradient norm, 0 is off. `reset`: when the memory is cleared, `{on = "step"}` or, beside
    a `follow` rule that hears the same, `{on = "plateau", ..}`; schedules go on. `store` = "bfloat16": after each step
    the parameters are rounded to numbers of that type, as a model that is served in it has them, while the optimiser
    goes on from exact ones, so that steps too small to be seen add up (Micikevicius et al. 2018, section 3.1); weights
    that anybody else moved are taken as they are."""

    lr: Annotated[Number, Bounds(0)] = 1e-3
    clip: Annotated[Number, Bounds(0)] = 0.0
    reset: When | None = None
    betas: tuple[_Beta, _Beta] = (0.9, 0.999)
    eps: AtLeast0 = 1e-8
    weight_decay: Annotated[Number, Bounds(0)] = 0.0
    decoupled: bool = True
    store: Literal["", "bfloat16"] = ""

    def __post_init__(self) -> None:
        check(self)
        self._frame = FirstOrder("mean", "square", *(["weights"] if self.store else []))

    def bind(self, params: Sequence[nn.Parameter]) -> None:
        """Own these parameters; see `FirstOrder.bind`."""
        self._frame.bind(params)

    def share(self, total: Total) -> None:
        """Its parameters are shards: `total` adds a number up over the processes that have the others."""
        self._frame.total = total

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
        settings |= {"weight_decay": resolve(self.weight_decay, at), "amsgrad": False, "maximize": False}
        kernel: Any = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        mean, square, *weights = piece.kept
        exact = _exact(piece.params, *weights) if weights else piece.params
        kernel(exact, piece.grads, mean, square, [], piece.steps, **settings)
        if weights:
            torch._foreach_copy_(piece.params, [x.bfloat16() for x in exact])


def _exact(params: list[Tensor], kept: list[Tensor]) -> list[Tensor]:
    """The weights before they were rounded; where one is not what they round to, somebody set it: that one."""
    for mine, p in zip(kept, params, strict=True):
        torch.where(mine.bfloat16() == p, mine, p, out=mine)
    return kept


Adam = partial(AdamW, decoupled=False)  # as `adam` makes it

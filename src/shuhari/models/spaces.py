"""Gymnasium spaces as models of fixed size need them: observations as flat rows, actions as indices or boxes.

Leaves out dictionaries, tuples and images: name a model of your own for these. Axes: `B` rows, `D` inputs, `A` action
dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from shuhari.ports import Task


def spaces_of(task: Task, model: str) -> tuple[Any, Any]:
    """(observation space, action space); TypeError for a task of text, which has none."""
    found = task.spaces()
    if found is None:
        raise TypeError(f"the model {model!r} needs a task with spaces, not one of text (see the model 'causal')")
    return found


def discrete(space: Any, what: str, model: str) -> spaces.Discrete:
    """`space`, which has to be Discrete; TypeError otherwise."""
    if not isinstance(space, spaces.Discrete):
        raise TypeError(f"the model {model!r} needs a Discrete {what} space: this task's is {space}")
    return space


def box(space: Any, what: str, model: str, *, bounded: bool = False) -> spaces.Box:
    """`space`, which has to be a Box of one axis (with bounds on every side if `bounded`); TypeError otherwise."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise TypeError(f"the model {model!r} needs a Box {what} space of shape (A,): this task's is {space}")
    if bounded and not space.is_bounded():
        raise TypeError(f"the model {model!r} scales to bounds, and this task's {what} space has none: {space}")
    return space


def bounds(space: spaces.Box) -> tuple[Tensor, Tensor] | None:
    """([A] low, [A] high) as float32; None where the space has no bounds at all."""
    if not (np.isfinite(space.low).any() or np.isfinite(space.high).any()):
        return None
    return torch.from_numpy(space.low.astype(np.float32)), torch.from_numpy(space.high.astype(np.float32))


class Inputs:
    """Observations -> float rows [B, D]: a Box flattened, a Discrete one as one-hot."""

    def __init__(self, space: Any, model: str) -> None:
        self.one_hot: Tensor | None = None
        self.start = 0
        if isinstance(space, spaces.Discrete):
            self.size, self.start = int(space.n), int(space.start)
            self.one_hot = torch.eye(self.size)
        elif isinstance(space, spaces.Box):
            self.size = int(np.prod(space.shape, dtype=int))
        else:
            raise TypeError(f"the model {model!r} reads Box and Discrete observations: this task's are {space}")

    def __call__(self, x: Tensor) -> Tensor:
        if self.one_hot is not None:
            return self.one_hot[(x - self.start if self.start else x).reshape(-1)]
        if x.dtype is not torch.float32:
            x = x.float()
        return x if x.dim() == 2 else x.reshape(len(x), -1)

"""A small convolutional encoder of images, with layers chosen by the image size.

Images with sides of 36 pixels and more go through the net of Mnih et al. 2015 ("Human-level control through deep
reinforcement learning", methods), smaller ones through three layers of 3 x 3. Leaves out residual nets, pooling and
augmentation: use a model of your own for these. Axes: `B` rows, `S` stacked frames, `C` channels, `D` features.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

LARGE = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)), 512  # (channels, kernel, stride, padding), features
SMALL = ((16, 3, 1, 1), (32, 3, 2, 1), (64, 3, 2, 1)), 128
SIDE = 36  # smallest side for the large net


def is_image(space: object) -> bool:
    """Whether a space is a Box of uint8 or bool with three axes, or four if frames are stacked in front."""
    return isinstance(space, spaces.Box) and space.dtype in (np.uint8, np.bool_) and len(space.shape) in (3, 4)


class Convolution(nn.Module):
    """A module: uint8 or bool [B, (S,) H, W, C] or [B, (S,) C, H, W] -> features [B, D] >= 0; pixels of uint8 are
    divided by 255, those of bool (which arrive as int8, as of MinAtar) are 0 or 1.

    The channel axis is the shorter one of the first and the last; the last if they are equal. Stacked frames become
    channels. `orthogonal`: orthogonal weights with gain sqrt(2), biases 0; else PyTorch's defaults.
    """

    def __init__(self, shape: tuple[int, ...], orthogonal: bool = False) -> None:
        super().__init__()
        *frames, first, middle, last = shape
        self._last = last <= first
        c, h, w = (last, first, middle) if self._last else (first, middle, last)
        self._large = min(h, w) >= SIDE
        layers, self.size = LARGE if self._large else SMALL
        self.layers = nn.ModuleList()
        self._how: list[tuple[int, int]] = []
        channels = c * (frames[0] if frames else 1)
        for out, kernel, stride, padding in layers:
            self.layers.append(nn.Conv2d(channels, out, kernel, stride, padding))
            self._how.append((stride, padding))
            channels, h, w = out, *((n + 2 * padding - kernel) // stride + 1 for n in (h, w))
        self.layers.append(nn.Linear(channels * h * w, self.size))
        if orthogonal:
            for layer in self.layers:
                nn.init.orthogonal_(layer.weight, math.sqrt(2))  # type: ignore[arg-type]
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def __call__(self, x: Tensor) -> Tensor:
        x = x.movedim(-1, -3) if self._last else x
        scale = 255 if x.dtype is torch.uint8 else 1
        x = x.flatten(1, -3)
        if self._large:  # channels last: the backward pass of these layers takes half the time on a CPU
            x = x.contiguous(memory_format=torch.channels_last)
        x = x.float() / scale
        *convolutions, linear = self.layers
        for layer, (stride, padding) in zip(convolutions, self._how, strict=True):
            x = torch.relu(F.conv2d(x, layer.weight, layer.bias, stride, padding))  # type: ignore[arg-type]
        return torch.relu(linear(x.flatten(1)))

    forward = __call__

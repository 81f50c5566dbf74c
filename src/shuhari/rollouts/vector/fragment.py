"""What lanes write in while they are stepped, and how the rows of its steps become columns.

Axes: `N` lanes, `T` steps, `B` = (T + 1) * N rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from shuhari.data import Array
from shuhari.rollouts.vector.lanes import Seen, each, room, write


class Fragment(NamedTuple):
    """[T + 1, N] of each, to write in; longer than what is used."""

    seen: Seen  # [T + 1, N, ...] observations
    reward: Array  # float64: what the returns sum
    mask: Array
    cont: Array
    episode: Array

    @classmethod
    def of(cls, space: spaces.Space[object], rows: int, episode: Array) -> Fragment:
        """For `rows` steps of the lanes that are in these episodes [N]."""
        shape = rows + 1, len(episode)
        numbers = np.zeros(shape), np.ones(shape, bool), np.ones(shape, np.float32)
        made = cls(room(space, *shape), *numbers, np.empty(shape, np.int64))
        made.episode[:] = episode
        return made

    def longer(self, space: spaces.Space[object], episode: Array) -> Fragment:
        """The same with room for twice as many steps, in which lanes are in `episode` [N]."""
        new = Fragment.of(space, 2 * len(self.mask) - 2, episode)
        for to, x in zip(new, self, strict=True):
            write(to, slice(len(self.mask)), x)
        return new

    def tensors(self, rows: int) -> list[Seen]:
        """[B, ...] of the first `rows` rows; rewards in single precision."""
        flat = [each(lambda x: torch.from_numpy(x[:rows].reshape(-1, *x.shape[2:])), x) for x in self]
        return [flat[0], flat[1].float(), *flat[2:]]


def closed(pieces: list[Tensor | None], n: int) -> Tensor:
    """[T * ring][n / ring, ...] -> [(T + 1) * n, ...]: rows of steps that do not say are NaN (-1 of integers), closing
    rows are 0."""
    told = [p for p in pieces if p is not None]
    like = told[0]
    if len(told) < len(pieces):
        fill = torch.full_like(like, torch.nan if like.is_floating_point() else -1)
        told = [fill if p is None else p for p in pieces]
    return torch.cat([*told, like.new_zeros(n, *like.shape[1:])])

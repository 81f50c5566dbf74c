"""Pools of a key-value cache: rows of similar length side by side, and their memory.

Axes: `L` layers, `G` key-value heads, `d` width of a head, `T` columns of a pool, `P` tokens of a prefix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from shuhari.data import Array

NARROW = 64  # the width of the first pool, in tokens
STEP = 8  # tokens by which the first pool grows
KEEP = 1 << 28  # bytes of free memory kept for new rows


class Memory:
    """The allocator of keys and values. On a CPU it reuses up to KEEP bytes of returned memory, since new pages are
    slow; on a GPU torch's own allocator does so."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._spare: list[Tensor] = []  # flat, the smallest first

    def take(self, shape: tuple[int, ...]) -> Tensor:
        """Returns an uninitialised tensor."""
        size = math.prod(shape)
        if self.device.type != "cpu":
            return torch.empty(shape, device=self.device, dtype=self.dtype)
        for i, flat in enumerate(self._spare):
            if len(flat) >= size:
                return self._spare.pop(i)[:size].view(shape)
        room = 1 << max(size - 1, 0).bit_length()  # pages that are not touched use no memory
        return torch.empty(room, dtype=self.dtype)[:size].view(shape)

    def give(self, x: Tensor) -> None:
        """Returns a tensor obtained by `take`, for reuse."""
        size = x.untyped_storage().nbytes()
        if self.device.type == "cpu" and 0 < size <= KEEP:
            self._spare = sorted([*self._spare, x.as_strided((size // x.element_size(),), (1,))], key=len)
            while sum(flat.nbytes for flat in self._spare) > KEEP:
                self._spare.pop(0)


@dataclass(eq=False)
class Pool:
    """Rows of up to `width` tokens: `kv` [2, L, room, G, T, d], whose first `count` places belong to `slots` and hold
    finite numbers. T grows with the longest row, so that reads are close together."""

    memory: Memory
    kv: Tensor
    width: int
    count: int = 0
    slots: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # keys and values [room * G, T, d] of each layer

    @property
    def columns(self) -> int:
        """T."""
        return self.kv.shape[4]

    def resize(self, room: int, T: int) -> None:
        """Allocates space for `room` rows of T tokens and keeps the present ones."""
        old, n, t = self.kv, self.count, self.columns
        self.kv = kv = self.memory.take((*old.shape[:2], room, old.shape[3], T, old.shape[5]))
        kv[:, :, :n, :, :t] = old[:, :, :n]
        kv[:, :, :n, :, t:] = 0  # masked entries must be finite
        self.memory.give(old)
        self.layers = [(kv[0, i].flatten(0, 1), kv[1, i].flatten(0, 1)) for i in range(kv.shape[1])]
        self.slots = np.pad(self.slots[:n], (0, room - n))

    def reserve(self, more: int, tokens: int) -> None:
        """Ensures space for `more` rows, with `tokens` tokens each."""
        step = max(STEP, self.width // 8)
        room, T = len(self.slots), max(self.columns, 2 * STEP, -(-tokens // step) * step)
        if self.count + more > room:
            room = max(self.count + more, 2 * self.count)
        if room > len(self.slots) or self.columns < T:
            self.resize(room, T)

    def add(self, slots: Array, kv: Tensor) -> None:
        """Adds rows with keys and values kv [2, L, rows or 1, G, P, d], P < width."""
        P = kv.shape[4]
        self.reserve(len(slots), P + 1)
        a, z = self.count, self.count + len(slots)
        self.kv[:, :, a:z, :, :P] = kv
        self.kv[:, :, a:z, :, P:] = 0
        self.slots[a:z] = slots
        self.count = z

    def drop(self, places: Array) -> None:
        """Removes the rows at `places`; the last rows fill the gaps."""
        left = self.count - len(places)
        last = np.setdiff1d(np.arange(left, self.count), places)
        for to, at in zip(places[places < left].tolist(), last.tolist(), strict=True):
            self.kv[:, :, to] = self.kv[:, :, at]
            self.slots[to] = self.slots[at]
        self.count = left
        if not left:
            self.clear()
        elif 4 * left < len(self.slots) and self.kv.nbytes > KEEP // 4:  # worth a copy
            self.resize(2 * left, self.columns)

    def clear(self) -> None:
        """Removes all rows and releases the memory."""
        self.memory.give(self.kv)
        self.kv = self.kv[:, :, :0, :, :0].clone()  # shares nothing with the released memory
        self.count, self.slots, self.layers = 0, self.slots[:0], []


def width(tokens: int) -> int:
    """Returns the width of the narrowest pool with room for so many tokens."""
    return max(NARROW, 1 << (tokens - 1).bit_length())

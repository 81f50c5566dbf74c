"""Counter-based noise: splitmix64 of (row key, index, position), so that no generator state exists anywhere.

What a row draws depends only on its key and the index: not on its neighbours, the batch size, or what ran before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np
import torch
from torch import Tensor

from shuhari.data import Array, code


def _u64(x: int) -> Array:
    """Return an array without axes, which numpy reads faster than a scalar."""
    return np.array(x, np.uint64)


_GOLDEN = _u64(0x9E3779B97F4A7C15)
_ROUNDS = (_u64(30), _u64(0xBF58476D1CE4E5B9)), (_u64(27), _u64(0x94D049BB133111EB))
_LAST, _DROPPED = _u64(31), _u64(11)
_SALTS = {"uniform": _u64(0), "normal": _u64(0xD1B54A32D192ED03)}


def mix(x: Array) -> Array:
    """Return the splitmix64 finaliser, elementwise on uint64 of at least one axis (numpy warns when a scalar
    overflows)."""
    z = x + _GOLDEN
    for shift, factor in _ROUNDS:
        z ^= z >> shift
        z *= factor
    z ^= z >> _LAST
    return z


def keys(seed: int, *name: object, n: int) -> Array:
    """Return [n] uint64 keys of the rows 0..n-1 of the stream `name`."""
    return mix(np.uint64(code(seed, *name)) + mix(np.arange(n, dtype=np.uint64)))


def uniforms(row_keys: Array, index: Array, law: str = "uniform", width: int = 1) -> Array:
    """Return [..., width] float64 in (0, 1): the draws of the rows with these uint64 keys at these indices (the two are
    broadcast to one shape). `CounterNoise` gives the same numbers."""
    return _uniforms(row_keys, mix(index.astype(np.uint64) ^ _SALTS[law]), width)


def _uniforms(row_keys: Array, places: Array, width: int) -> Array:
    """Return `uniforms` of mixed indices."""
    rows = mix(row_keys ^ places)[..., None]
    bits = mix(rows + _strides(width))
    out: Array = (bits >> _DROPPED).astype(np.float64)
    out += 0.5
    out *= 2.0**-53
    return out


@lru_cache(64)
def _strides(width: int) -> Array:
    return _GOLDEN * np.arange(1, width + 1, dtype=np.uint64)


@lru_cache(64)
def _places(law: str, first: int, n: int) -> Array:
    """Return [n, 1] the indices from `first` on, mixed."""
    return mix(np.arange(first, first + n, dtype=np.uint64)[:, None] ^ _SALTS[law])


class CounterNoise:
    """One stream of noise for each row. `block` indices are drawn at once and kept, for callers that count up one by
    one."""

    def __init__(self, row_keys: Sequence[int] | Array, block: int = 1) -> None:
        self.keys = np.asarray(row_keys, np.uint64)
        self.block = block
        self._kept: dict[tuple[str, tuple[int, ...]], tuple[int, Tensor]] = {}

    def uniform(self, index: int, *shape: int) -> Tensor:
        """Return [rows, *shape] float64 uniforms in (0, 1)."""
        return self._draw("uniform", index, shape)

    def normal(self, index: int, *shape: int) -> Tensor:
        """Return [rows, *shape] float32 standard normals, by the inverse distribution function."""
        return self._draw("normal", index, shape)

    def _draw(self, law: str, index: int, shape: tuple[int, ...]) -> Tensor:
        b, i = divmod(index, self.block)
        kept = self._kept.get((law, shape))
        if kept is None or kept[0] != b:
            places = _places(law, b * self.block, self.block)
            x = torch.from_numpy(_uniforms(self.keys, places, prod(shape)))
            x = x.reshape(self.block, len(self.keys), *shape)
            kept = b, torch.special.ndtri(x).float() if law == "normal" else x
            if self.block > 1:
                self._kept[law, shape] = kept
        return kept[1][i]

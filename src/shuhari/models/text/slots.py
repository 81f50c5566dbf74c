"""The key-value cache of rows being generated, one slot for each row.

Rows of similar length share a pool of one width, so that a long row does not make short ones attend over columns that
they lack. A row that outgrows its pool moves to the next, twice as wide; an emptied place is filled by the last row of
its pool. Left out: paging, keys shared between rows that run, quantised keys.

Axes: `b` rows, `m` rows of a pool, `L` layers, `H` heads, `G` key-value heads, `d` width of a head, `T` columns of a
pool, `w` of them that are read, `P` tokens of a prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shuhari.data import Array
from shuhari.models.text.pools import Memory, Pool, width
from shuhari.models.text.prefill import Prefix

GAP = 1 << 13  # bytes: reading as many unused ones is faster than a separate read after them


@dataclass(frozen=True, eq=False)
class _Part:
    """The inputs of one forward for a pool: rows a to z of the forward, their columns, the place of the new token [m *
    G], and the mask [m, 1, w] added to the scores (None: all rows have equal length)."""

    pool: Pool
    a: int
    z: int
    columns: int
    at: Tensor
    mask: Tensor | None


class KeyValueCache:
    """Keys and values of rows in slots 0 to `slots` - 1, with `length` tokens read in each. `lean`: the forward that
    computes them."""

    def __init__(self, lean: Any, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        self.lean, self.device, self.dtype = lean, device, dtype
        self.length = np.zeros(slots, np.int64)
        self.fused = device.type != "cpu"  # on a CPU two products and a softmax are faster than the fused kernel
        self.memory = Memory(device, dtype)
        self.pools: list[Pool] = []
        self.clear()

    def clear(self) -> None:
        """Empties all slots."""
        for pool in self.pools:
            pool.clear()
        self.pools = []
        self._parts: list[_Part] = []

    @property
    def running(self) -> Array:
        """[b] the slots in use, in the order of a forward."""
        pools = [p for p in self.pools if p.count]
        return np.concatenate([p.slots[: p.count] for p in pools]) if pools else np.zeros(0, np.int64)

    @property
    def used(self) -> int:
        """Capacity, in tokens, of the taken places."""
        return sum(p.count * p.width for p in self.pools)

    def new(self, ids: Array, base: Prefix | None = None) -> Prefix:
        """Creates a prefix that is not prefilled yet."""
        lean = self.lean
        kv = torch.empty(2, lean.layers, lean.kv_heads, len(ids), lean.width, device=self.device, dtype=self.dtype)
        return Prefix(ids, kv, base)

    def enter(self, seats: Mapping[Prefix, Sequence[int]]) -> None:
        """Starts slots from prefilled prefixes, each with a copy of their keys."""
        pools = {prefix: self._pool(width(len(prefix.ids) + 1)) for prefix in seats}
        for pool in self.pools:
            here = {prefix: len(slots) for prefix, slots in seats.items() if pools[prefix] is pool}
            if here:
                pool.reserve(sum(here.values()), 1 + max(len(prefix.ids) for prefix in here))
        for prefix, slots in seats.items():
            pools[prefix].add(np.array(slots), prefix.kv[:, :, None])
            self.length[slots] = len(prefix.ids)

    def leave(self, slots: Array) -> None:
        """Frees these slots."""
        for pool in self.pools:
            places = np.isin(pool.slots[: pool.count], slots).nonzero()[0]
            if len(places):
                pool.drop(places)

    def widen(self) -> None:
        """Makes room for another token of each row; those that fill their pool move to the next."""
        for pool in self.pools[::-1]:
            places = (self.length[pool.slots[: pool.count]] >= pool.width).nonzero()[0]
            if len(places):
                rows = pool.kv.index_select(2, torch.from_numpy(places).to(self.device))
                self._pool(2 * pool.width).add(pool.slots[places], rows)
                pool.drop(places)
            if pool.count:
                pool.reserve(0, int(self.length[pool.slots[: pool.count]].max()) + 1)

    def _pool(self, T: int) -> Pool:
        for pool in self.pools:
            if pool.width == T:
                return pool
        lean = self.lean
        kv = torch.zeros(2, lean.layers, 0, lean.kv_heads, 0, lean.width, device=self.device, dtype=self.dtype)
        self.pools = sorted([*self.pools, Pool(self.memory, kv, T)], key=lambda p: p.width)
        return self._pool(T)

    # ---------------------------------------------------------------- one token of each row

    def begin(self) -> Tensor:
        """Prepares a forward of one token for each row of `running`; returns [b] the positions of these tokens."""
        G, a, self._parts, slots = self.lean.kv_heads, 0, [], self.running
        length = torch.from_numpy(self.length[slots]).to(self.device)
        for pool in self.pools:
            if not (m := pool.count):
                continue
            here, lengths = length[a : a + m], self.length[pool.slots[:m]]
            w, T = int(lengths.max()) + 1, pool.columns
            if not self.fused and (T - w) * self.lean.width * pool.kv.element_size() <= GAP:
                w = T
            heads = torch.arange(m * G, device=self.device)
            at = heads * T + here.repeat_interleave(G) if G > 1 else heads * T + here
            mask = None
            if int(lengths.min()) + 1 < w:
                mask = torch.zeros(m, 1, w, device=self.device, dtype=self.dtype)
                mask.masked_fill_(torch.arange(w, device=self.device) > here[:, None, None], -torch.inf)
            self._parts.append(_Part(pool, a, a + m, w, at, mask))
            a += m
        self.length[slots] += 1
        return length

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attends with q [b, H, d] over the tokens of each row, after adding k and v [b, G, d] of the token itself."""
        outs = []
        for part in self._parts:
            rows, (keys, values) = slice(part.a, part.z), part.pool.layers[layer]
            keys.view(-1, k.shape[2]).index_copy_(0, part.at, k[rows].reshape(-1, k.shape[2]))
            values.view(-1, k.shape[2]).index_copy_(0, part.at, v[rows].reshape(-1, k.shape[2]))
            here = slice((part.z - part.a) * k.shape[1])
            outs.append(self._over(q[rows], keys[here, : part.columns], values[here, : part.columns], part.mask))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _over(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Maps q [m, H, d] over keys and values [m * G, w, d] -> [m, H, d]."""
        (m, H, d), G, scale = q.shape, len(keys) // len(q), self.lean.scale
        if self.fused:
            k, v = keys.unflatten(0, (m, G)), values.unflatten(0, (m, G))
            mask = None if mask is None else mask[:, None]
            out = F.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=mask, scale=scale, enable_gqa=H != G)
            return out[:, :, 0]
        scores = torch.bmm((q * scale).view(m * G, H // G, d), keys.mT)
        if mask is not None:
            scores.view(m, H, -1).add_(mask)
        return torch.bmm(scores.softmax(-1, dtype=torch.float32).to(values.dtype), values).view(m, H, d)

"""The keys and values of rows that are being continued, each row in a slot of its own; and of prompts being read.

Rows of like length lie together in pools of one width, so that a long row does not make short ones attend over
columns that they lack. A row that outgrows its pool moves to the next, twice as wide; a place that falls empty is
filled by the last row of its pool. Left out: paging, keys shared between rows that run, quantised keys.

Axes: `b` rows, `m` rows of a pool, `L` layers, `H` heads, `G` key-value heads, `d` width of a head, `T` width of a
pool, `w` columns of it in use, `P` tokens of a prefix, `U` prefixes read side by side, `n` tokens of each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shuhari.data import Array

NARROW = 64  # the width of the first pool, in tokens


@dataclass(eq=False)
class Prefix:
    """Tokens [P] that one or several rows begin with, read up to `done`. `kv` [2, L, G, P, d]; `hidden` [D] behind the
    last token, once all are read. `base`: the prefix whose tokens it begins with, if that is to be read before."""

    ids: Array
    kv: Tensor
    base: Prefix | None = None
    done: int = 0
    hidden: Tensor | None = None


@dataclass(eq=False)
class Pool:
    """Rows of up to `width` tokens: `kv` [2, L, room, G, T, d], whose first `count` places are taken by `lanes`."""

    kv: Tensor
    width: int
    count: int = 0
    lanes: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # keys and values [room * G, T, d] of each layer

    def resize(self, room: int) -> None:
        """Make place for `room` rows; those that are here stay."""
        kv = _zeros((*self.kv.shape[:2], room, *self.kv.shape[3:]), self.kv)  # what is masked must be finite
        kv[:, :, : self.count] = self.kv[:, :, : self.count]
        self.kv, self.layers = kv, [(kv[0, i].flatten(0, 1), kv[1, i].flatten(0, 1)) for i in range(kv.shape[1])]
        lanes = np.zeros(room, np.int64)
        lanes[: self.count] = self.lanes[: self.count]
        self.lanes = lanes

    def reserve(self, more: int) -> None:
        """Make sure that there is place for `more` rows."""
        if self.count + more > len(self.lanes):
            self.resize(max(self.count + more, 2 * self.count))

    def add(self, lanes: Array, kv: Tensor) -> None:
        """Rows with keys and values kv [2, L, rows or 1, G, P, d], P <= T."""
        self.reserve(len(lanes))
        a, z = self.count, self.count + len(lanes)
        self.kv[:, :, a:z, :, : kv.shape[4]] = kv
        self.lanes[a:z] = lanes
        self.count = z

    def drop(self, places: Array) -> None:
        """Take the rows at `places` out; the last rows fill the gaps."""
        left = self.count - len(places)
        last = np.setdiff1d(np.arange(left, self.count), places)
        for to, at in zip(places[places < left].tolist(), last.tolist(), strict=True):
            self.kv[:, :, to] = self.kv[:, :, at]
            self.lanes[to] = self.lanes[at]
        self.count = left
        if 4 * left < len(self.lanes):
            self.resize(2 * left)


@dataclass(frozen=True, eq=False)
class _Part:
    """What one forward needs of a pool: rows a to z of the forward, their columns, where the new token goes [m * G],
    and the mask [m, 1, w] to add to the scores (None: all rows have equal length)."""

    pool: Pool
    a: int
    z: int
    columns: int
    at: Tensor
    mask: Tensor | None


class Slots:
    """Lanes 0 to `slots` - 1, each a row with `length` tokens read. `lean`: the forward whose keys these are."""

    def __init__(self, lean: Any, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        self.lean, self.device, self.dtype = lean, device, dtype
        self.length = np.zeros(slots, np.int64)
        self.fused = device.type != "cpu"  # where two products and a softmax are quicker than the fused kernel
        self.clear()

    def clear(self) -> None:
        """Nothing is read, and no memory held."""
        self.pools: list[Pool] = []
        self._parts: list[_Part] = []

    @property
    def lanes(self) -> Array:
        """[b] the lanes that run, in the order of a forward."""
        pools = [p for p in self.pools if p.count]
        return np.concatenate([p.lanes[: p.count] for p in pools]) if pools else np.zeros(0, np.int64)

    @property
    def used(self) -> int:
        """Tokens that the taken places have room for."""
        return sum(p.count * p.width for p in self.pools)

    def new(self, ids: Array, base: Prefix | None = None) -> Prefix:
        """A prefix, of which nothing is read."""
        lean = self.lean
        kv = torch.empty(2, lean.layers, lean.kv_heads, len(ids), lean.width, device=self.device, dtype=self.dtype)
        return Prefix(ids, kv, base)

    def enter(self, seats: Mapping[Prefix, Sequence[int]]) -> None:
        """Lanes go on from prefixes that have been read, each with keys of its own."""
        pools = {prefix: self._pool(width(len(prefix.ids) + 1)) for prefix in seats}
        for pool in self.pools:
            pool.reserve(sum(len(lanes) for prefix, lanes in seats.items() if pools[prefix] is pool))
        for prefix, lanes in seats.items():
            pools[prefix].add(np.array(lanes), prefix.kv[:, :, None])
            self.length[lanes] = len(prefix.ids)

    def leave(self, lanes: Array) -> None:
        """These lanes are free."""
        for pool in self.pools:
            places = np.isin(pool.lanes[: pool.count], lanes).nonzero()[0]
            if len(places):
                pool.drop(places)

    def widen(self) -> None:
        """Rows that fill their pool move to one that has room for another token."""
        for pool in self.pools[::-1]:
            places = (self.length[pool.lanes[: pool.count]] >= pool.width).nonzero()[0]
            if len(places):
                rows = pool.kv.index_select(2, torch.from_numpy(places).to(self.device))
                self._pool(2 * pool.width).add(pool.lanes[places], rows)
                pool.drop(places)

    def _pool(self, T: int) -> Pool:
        for pool in self.pools:
            if pool.width == T:
                return pool
        lean = self.lean
        kv = torch.zeros(2, lean.layers, 0, lean.kv_heads, T, lean.width, device=self.device, dtype=self.dtype)
        self.pools = sorted([*self.pools, Pool(kv, T)], key=lambda p: p.width)
        return self._pool(T)

    # ---------------------------------------------------------------- one token of each row

    def begin(self) -> Tensor:
        """Prepare a forward of one token for each row in `lanes`: [b] the positions of these tokens."""
        G, a, self._parts, lanes = self.lean.kv_heads, 0, [], self.lanes
        length = torch.from_numpy(self.length[lanes]).to(self.device)
        for pool in self.pools:
            if not (m := pool.count):
                continue
            here, lengths = length[a : a + m], self.length[pool.lanes[:m]]
            w = int(lengths.max()) + 1
            heads = torch.arange(m * G, device=self.device)
            at = heads * pool.width + here.repeat_interleave(G) if G > 1 else heads * pool.width + here
            mask = None
            if int(lengths.min()) + 1 < w:
                mask = torch.zeros(m, 1, w, device=self.device, dtype=self.dtype)
                mask.masked_fill_(torch.arange(w, device=self.device) > here[:, None, None], -torch.inf)
            self._parts.append(_Part(pool, a, a + m, w, at, mask))
            a += m
        self.length[lanes] += 1
        return length

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [b, H, d] over what each row has read, after k and v [b, G, d] of the token itself were added."""
        outs = []
        for part in self._parts:
            rows, (keys, values) = slice(part.a, part.z), part.pool.layers[layer]
            keys.view(-1, k.shape[2]).index_copy_(0, part.at, k[rows].reshape(-1, k.shape[2]))
            values.view(-1, k.shape[2]).index_copy_(0, part.at, v[rows].reshape(-1, k.shape[2]))
            here = slice((part.z - part.a) * k.shape[1])
            outs.append(self._over(q[rows], keys[here, : part.columns], values[here, : part.columns], part.mask))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _over(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """q [m, H, d] over keys and values [m * G, w, d] -> [m, H, d]."""
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


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros; on a CPU of memory that is not touched, so that columns without a token take none."""
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or not size:
        return like.new_zeros(shape)
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64  # aligned as torch does, since sums may depend on it
    return torch.from_numpy(raw[start : start + size]).view(like.dtype).view(shape)


def width(tokens: int) -> int:
    """The narrowest pool with room for so many tokens."""
    return max(NARROW, 1 << (tokens - 1).bit_length())


# -------------------------------------------------------------------- reading prompts


def read(lean: Any, weights: Any, prefixes: Sequence[Prefix], chunk: int) -> None:
    """Read up to `chunk` further tokens of these prefixes, in one forward, first come first served."""
    some: list[tuple[Prefix, int]] = []
    for prefix in prefixes:
        if prefix.base is not None and not prefix.done:
            if prefix.base.hidden is None:
                continue
            prefix.done = len(prefix.base.ids)
            prefix.kv[:, :, :, : prefix.done] = prefix.base.kv
            prefix.base = None
        n = min(chunk, len(prefix.ids) - prefix.done)
        if n > 0:
            some.append((prefix, n))
            chunk -= n
    if not some:
        return
    some.sort(key=lambda x: (x[0].done, x[1]))  # those of one shape side by side
    groups: list[tuple[list[Prefix], int, int]] = []  # prefixes, tokens read before, tokens of each
    for prefix, n in some:
        if not groups or groups[-1][1:] != (prefix.done, n):
            groups.append(([], prefix.done, n))
        groups[-1][0].append(prefix)
    device = some[0][0].kv.device
    ids = torch.from_numpy(np.concatenate([p.ids[p.done : p.done + n] for p, n in some]).astype(np.int64)).to(device)
    positions = torch.from_numpy(np.concatenate([np.arange(p.done, p.done + n) for p, n in some])).to(device)
    last = torch.from_numpy(np.cumsum([n for _, n in some]) - 1).to(device)
    gqa = lean.heads != lean.kv_heads

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outs, a = [], 0
        for group, done, n in groups:
            z = a + n * len(group)
            qs, ks, vs = (x[a:z].unflatten(0, (-1, n)).transpose(1, 2) for x in (q, k, v))  # [U, heads, n, d]
            for i, p in enumerate(group):
                p.kv[0, layer, :, done : done + n] = ks[i]
                p.kv[1, layer, :, done : done + n] = vs[i]
            mask = None
            if done:
                ks, vs = (torch.stack([p.kv[j, layer, :, : done + n] for p in group]) for j in (0, 1))
                mask = torch.ones(n, done + n, dtype=torch.bool, device=device).tril(done)
            out = F.scaled_dot_product_attention(
                qs, ks, vs, attn_mask=mask, is_causal=mask is None and n > 1, scale=lean.scale, enable_gqa=gqa
            )
            outs.append(out.transpose(1, 2).flatten(0, 1))
            a = z
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    hidden = lean.hidden(weights, ids, positions, attend, keep=last)
    for i, (prefix, n) in enumerate(some):
        prefix.done += n
        if prefix.done == len(prefix.ids):
            prefix.hidden = hidden[i]

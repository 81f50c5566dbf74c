"""The key-value cache of rows being generated, one slot for each row, and of prompts being prefilled.

Rows of like length lie together in pools of one width, so that a long row does not make short ones attend over
columns that they lack. A row that outgrows its pool moves to the next, twice as wide; a place that falls empty is
filled by the last row of its pool. Left out: paging, keys shared between rows that run, quantised keys.

Axes: `b` rows, `m` rows of a pool, `L` layers, `H` heads, `G` key-value heads, `d` width of a head, `T` columns
of a pool, `w` of them that are read, `P` tokens of a prefix, `U` prefixes read side by side, `n` tokens of each.
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
STEP = 8  # tokens by which the first pool grows
GAP = 1 << 13  # bytes: to read as many in vain is quicker than to begin anew behind them
KEEP = 1 << 28  # bytes of memory that wait for new rows


@dataclass(eq=False)
class Prefix:
    """Tokens [P] that one or several rows begin with, read up to `done`. `kv` [2, L, G, P, d]; `hidden` [D] behind the
    last token, once all are read. `base`: the prefix whose tokens it begins with, if that is to be read before."""

    ids: Array
    kv: Tensor
    base: Prefix | None = None
    done: int = 0
    hidden: Tensor | None = None

    def unread(self) -> list[Prefix]:
        """The prefixes still to be prefilled for this one, in order; empty where it is complete."""
        if self.hidden is not None:
            return []
        return [*(self.base.unread() if self.base else ()), self]


class Memory:
    """The allocator of keys and values. On a CPU memory that is given back is used again, up to KEEP bytes of it, since
    new pages are slow; on a GPU torch's own allocator does so."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._spare: list[Tensor] = []  # flat, the smallest first

    def take(self, shape: tuple[int, ...]) -> Tensor:
        """A tensor of any content."""
        size = math.prod(shape)
        if self.device.type != "cpu":
            return torch.empty(shape, device=self.device, dtype=self.dtype)
        for i, flat in enumerate(self._spare):
            if len(flat) >= size:
                return self._spare.pop(i)[:size].view(shape)
        room = 1 << max(size - 1, 0).bit_length()  # pages that are not touched take none
        return torch.empty(room, dtype=self.dtype)[:size].view(shape)

    def give(self, x: Tensor) -> None:
        """Return a tensor that `take` gave, for reuse."""
        size = x.untyped_storage().nbytes()
        if self.device.type == "cpu" and 0 < size <= KEEP:
            self._spare = sorted([*self._spare, x.as_strided((size // x.element_size(),), (1,))], key=len)
            while sum(flat.nbytes for flat in self._spare) > KEEP:
                self._spare.pop(0)


@dataclass(eq=False)
class Pool:
    """Rows of up to `width` tokens: `kv` [2, L, room, G, T, d], whose first `count` places are taken by `slots` and
    hold finite numbers. T grows with the longest row, so that what is read lies close together."""

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
        """Allocate space for `room` rows of T tokens and keep the present ones."""
        old, n, t = self.kv, self.count, self.columns
        self.kv = kv = self.memory.take((*old.shape[:2], room, old.shape[3], T, old.shape[5]))
        kv[:, :, :n, :, :t] = old[:, :, :n]
        kv[:, :, :n, :, t:] = 0  # what is masked must be finite
        self.memory.give(old)
        self.layers = [(kv[0, i].flatten(0, 1), kv[1, i].flatten(0, 1)) for i in range(kv.shape[1])]
        self.slots = np.pad(self.slots[:n], (0, room - n))

    def reserve(self, more: int, tokens: int) -> None:
        """Ensure space for `more` rows, and for so many tokens in each."""
        step = max(STEP, self.width // 8)
        room, T = len(self.slots), max(self.columns, 2 * STEP, -(-tokens // step) * step)
        if self.count + more > room:
            room = max(self.count + more, 2 * self.count)
        if room > len(self.slots) or self.columns < T:
            self.resize(room, T)

    def add(self, slots: Array, kv: Tensor) -> None:
        """Add rows with keys and values kv [2, L, rows or 1, G, P, d], P < width."""
        P = kv.shape[4]
        self.reserve(len(slots), P + 1)
        a, z = self.count, self.count + len(slots)
        self.kv[:, :, a:z, :, :P] = kv
        self.kv[:, :, a:z, :, P:] = 0
        self.slots[a:z] = slots
        self.count = z

    def drop(self, places: Array) -> None:
        """Remove the rows at `places`; the last rows fill the gaps."""
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
        """Remove all rows and release the memory."""
        self.memory.give(self.kv)
        self.kv = self.kv[:, :, :0, :, :0].clone()  # shares nothing with what was given
        self.count, self.slots, self.layers = 0, self.slots[:0], []


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


class KeyValueCache:
    """Keys and values of rows in slots 0 to `slots` - 1, of each of which `length` tokens are read. `lean`: the forward
    that computes them."""

    def __init__(self, lean: Any, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        self.lean, self.device, self.dtype = lean, device, dtype
        self.length = np.zeros(slots, np.int64)
        self.fused = device.type != "cpu"  # else two products and a softmax are quicker than the fused kernel
        self.memory = Memory(device, dtype)
        self.pools: list[Pool] = []
        self.clear()

    def clear(self) -> None:
        """Empty all slots."""
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
        """Tokens that the taken places have room for."""
        return sum(p.count * p.width for p in self.pools)

    def new(self, ids: Array, base: Prefix | None = None) -> Prefix:
        """Create a prefix of which nothing is prefilled yet."""
        lean = self.lean
        kv = torch.empty(2, lean.layers, lean.kv_heads, len(ids), lean.width, device=self.device, dtype=self.dtype)
        return Prefix(ids, kv, base)

    def enter(self, seats: Mapping[Prefix, Sequence[int]]) -> None:
        """Start slots from prefilled prefixes, each with a copy of their keys."""
        pools = {prefix: self._pool(width(len(prefix.ids) + 1)) for prefix in seats}
        for pool in self.pools:
            here = {prefix: len(slots) for prefix, slots in seats.items() if pools[prefix] is pool}
            if here:
                pool.reserve(sum(here.values()), 1 + max(len(prefix.ids) for prefix in here))
        for prefix, slots in seats.items():
            pools[prefix].add(np.array(slots), prefix.kv[:, :, None])
            self.length[slots] = len(prefix.ids)

    def leave(self, slots: Array) -> None:
        """Free these slots."""
        for pool in self.pools:
            places = np.isin(pool.slots[: pool.count], slots).nonzero()[0]
            if len(places):
                pool.drop(places)

    def widen(self) -> None:
        """Room for another token of each row: those that fill their pool move to the next."""
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
        """Prepare a forward of one token for each row of `running`: [b] the positions of these tokens."""
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


def width(tokens: int) -> int:
    """The narrowest pool with room for so many tokens."""
    return max(NARROW, 1 << (tokens - 1).bit_length())


# -------------------------------------------------------------------- reading prompts


def prefill(lean: Any, weights: Any, prefixes: Sequence[Prefix], chunk: int) -> int:
    """Read up to `chunk` further tokens of these prefixes, in one forward, first come first served; how many were
    read. Raises ValueError where each waits for a base that is not among them: there is nothing to read, nor will there
    be."""
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
        raise ValueError(f"{len(prefixes)} prefixes, none of which can be read: expected their bases before them")
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
    return sum(n for _, n in some)

"""Packs rows of text for the lean forward, each shared prompt once, and computes attention among them.

A *segment* is a run of consecutive tokens: a row, or a prompt shared by several rows, or the rest of such a row, which
attends to the prompt as well. Segments of similar length share a block, so that little padding is needed, and only
within attention.

Axes: `B` rows, `K` positions of an action, `N` packed tokens, `m` requested tokens, `b` segments of a block, `T` the
longest of them, `S` keys that they see, `H` heads, `G` key-value heads, `d` width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shuhari.data import Array

SHARE = 0.9  # prompts are shared if that leaves less than this share of the tokens
LIKE = 0.75  # a block has segments down to this share of its longest, less SLACK tokens
SLACK = 4


@dataclass(frozen=True, eq=False)
class Block:
    """`n` tokens, packed one after the other. `queries` [b * T] and `keys` [b * S] are their places, `back` [n] those
    of the results; None: all segments have one length, and are in order. `mask` [b or 1, 1, T, S] is added to the
    scores, None: causal."""

    n: int
    size: int  # b
    queries: Tensor | None = None
    keys: Tensor | None = None
    back: Tensor | None = None
    mask: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Packed:
    """`ids` and `positions` [N], `keep` [m] the requested tokens, `blocks` of attention in the order of tokens."""

    ids: Tensor
    positions: Tensor
    keep: Tensor
    blocks: tuple[Block, ...]

    def attention(self, scale: float) -> _Attention:
        return _Attention(self.blocks, scale)


@dataclass(frozen=True, eq=False)
class _Attention:
    """An `Attend` over the blocks."""

    blocks: tuple[Block, ...]
    scale: float

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        first, out = 0, []
        for block in self.blocks:
            here = slice(first, first + block.n)
            first += block.n
            a = _place(q, here, block.queries, block.size)
            b, c = (_place(x, here, block.keys, block.size) for x in (k, v))
            mask = None if block.mask is None else block.mask.to(q.dtype)
            y = F.scaled_dot_product_attention(
                a, b, c, attn_mask=mask, is_causal=mask is None, scale=self.scale, enable_gqa=q.shape[1] != k.shape[1]
            )
            y = y.transpose(1, 2).flatten(0, 1)
            out.append(y if block.back is None else y.flatten(1).index_select(0, block.back).view(-1, *y.shape[1:]))
        return out[0] if len(out) == 1 else torch.cat(out)


def _place(x: Tensor, here: slice, index: Tensor | None, size: int) -> Tensor:
    """Maps [N, h, d] -> [b, h, tokens, d]."""
    if index is None:
        return x[here].unflatten(0, (size, -1)).transpose(1, 2)
    return x.flatten(1).index_select(0, index).view(size, -1, *x.shape[1:]).transpose(1, 2)


def pays_to_share(unique: Sequence[Array], index: Array, fed: Array) -> bool:
    """Whether running each of the `unique` contexts once for all its rows (`index`, `fed` [B]) saves enough tokens."""
    lengths = np.fromiter(map(len, unique), np.int64, len(unique))
    return bool(lengths.sum() + fed.sum() < SHARE * (lengths[index] + fed).sum())


def pack_rows(
    unique: Sequence[Array], index: Array, action: Array, fed: Array, seen: Array, device: torch.device
) -> Packed:
    """Packs rows: row r has context unique[index[r]] and the first fed[r] tokens of action [B, K]; requested is the
    token before each position that is `seen` [B, K], row by row."""
    lengths = np.fromiter(map(len, unique), np.int64, len(unique))
    count = np.bincount(index, minlength=len(unique))
    alone = count[index] == 1
    joined = not pays_to_share(unique, index, fed)
    if joined:
        alone[:] = True
    tails = action[np.arange(action.shape[1]) < fed[:, None]].astype(np.int64)
    tail = np.split(tails, np.cumsum(fed)[:-1])
    prompts = [] if joined else np.flatnonzero(count > 1).tolist()
    # segments: shared prompts, then rows; where: the segment of a row, and of its context
    tokens = [unique[u].astype(np.int64) for u in prompts]
    of = np.full(len(unique), -1)
    of[prompts] = np.arange(len(prompts))
    tokens += [np.concatenate((unique[u], t)) if a else t for u, t, a in zip(index, tail, alone, strict=True)]
    prefix = np.concatenate((np.full(len(prompts), -1), np.where(alone, -1, of[index])))
    size = np.fromiter(map(len, tokens), np.int64, len(tokens))
    order = np.lexsort((-size, prefix >= 0))  # segments that attend to a prompt come last; the longest first
    order = order[size[order] > 0]
    start = np.zeros(len(tokens), np.int64)
    start[order] = np.cumsum(size[order]) - size[order]
    first = np.where(prefix < 0, 0, size[prefix])  # the position of the first token
    blocks, at = [], 0
    while at < len(order):
        longest, kind, end = size[order[at]], prefix[order[at]] < 0, at + 1
        while end < len(order) and (prefix[order[end]] < 0) == kind and size[order[end]] >= LIKE * longest - SLACK:
            end += 1
        blocks.append(_block(order[at:end], prefix, start, size, device))
        at = end
    rows, places = np.nonzero(seen)
    here = len(prompts) + rows  # the segment of each row
    before = places - 1 + np.where(alone[rows], lengths[index[rows]], 0)
    up = prefix[here]
    keep = np.where(before >= 0, start[here] + before, start[up] + size[up] - 1)
    ids = np.concatenate([tokens[s] for s in order])
    positions = np.concatenate([np.arange(first[s], first[s] + size[s]) for s in order])
    on = [torch.from_numpy(x).to(device) for x in (ids, positions, keep)]
    return Packed(on[0], on[1], on[2], tuple(blocks))


def _block(segments: Array, prefix: Array, start: Array, size: Array, device: torch.device) -> Block:
    n, longest, b = int(size[segments].sum()), int(size[segments[0]]), len(segments)
    up, even = prefix[segments], bool((size[segments] == longest).all())
    if up[0] < 0 and even:
        return Block(n, b)
    t = np.arange(longest)
    own = start[segments, None] + np.minimum(t, size[segments, None] - 1)
    back = None if even else np.flatnonzero(t < size[segments, None])
    keys, mask = own, None
    if up[0] >= 0:
        before = size[up]
        p = np.arange(before.max())
        keys = np.concatenate((start[up, None] + np.minimum(p, before[:, None] - 1), own), 1)
        seen = (p < before[:, None])[:: 1 if before.min() < before.max() else b]  # one for all if it is the same
        hidden = np.zeros((len(seen), 1, longest, len(p) + longest), np.float32)
        hidden[:, 0, :, : len(p)][np.broadcast_to(~seen[:, None], (len(seen), longest, len(p)))] = -np.inf
        hidden[..., len(p) :][..., np.triu(np.ones((longest, longest), bool), 1)] = -np.inf
        mask = torch.from_numpy(hidden).to(device)

    def tensor(x: Array | None) -> Tensor | None:
        return None if x is None else torch.from_numpy(x.reshape(-1)).to(device)

    return Block(n, b, tensor(own) if back is not None or up[0] >= 0 else None, tensor(keys), tensor(back), mask)

"""Reads prompts into a key-value cache: prefixes that several rows may begin with, each read once, a chunk at a time.

Axes: `L` layers, `D` the width of the model, `G` key-value heads, `d` width of a head, `P` tokens of a prefix, `U`
prefixes read side by side, `n` tokens of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shuhari.data import Array


@dataclass(eq=False)
class Prefix:
    """Tokens [P] that one or several rows begin with, read up to `done`. `kv` [2, L, G, P, d]; `hidden` [D] after the
    last token, once all are read. `base`: the prefix that it begins with, if that is read first."""

    ids: Array
    kv: Tensor
    base: Prefix | None = None
    done: int = 0
    hidden: Tensor | None = None

    def unread(self) -> list[Prefix]:
        """Returns the prefixes still to be prefilled for this one, in order; empty if it is complete."""
        if self.hidden is not None:
            return []
        return [*(self.base.unread() if self.base else ()), self]


def prefill(lean: Any, weights: Any, prefixes: Sequence[Prefix], chunk: int) -> int:
    """Reads up to `chunk` further tokens of these prefixes, in one forward, first come first served; returns how many.
    Raises ValueError if each waits for a base that is not among them: there would never be anything to read."""
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
    some.sort(key=lambda x: (x[0].done, x[1]))  # equal shapes side by side
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
                ks, vs = (
                    torch.stack([p.kv[j, layer, :, : done + n] for p in group])
                    for j in (0, 1)
                )
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

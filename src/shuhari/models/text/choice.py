"""Samples one token of each row from its logits, and detects stop strings.

Left out: beams, penalties for repetition. A draw is a function of the row's logits and its number u only.

Axes: `b` rows, `V` vocabulary, `S` kept ids, `W` last tokens of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shuhari.data import Array, Sampling

BLOCK = 256  # ids per block: for more than two blocks the block is found first, then the id within


@dataclass(frozen=True, eq=False)
class Choice:
    """One decision of b rows: ids [b], logp [b] of the drawn ids and, if requested, the kept ids [b, S] (-1 padded) and
    the `top` most probable ids with their log-probabilities [b, top]."""

    ids: Tensor
    logp: Tensor
    support: Tensor | None = None
    top: tuple[Tensor, Tensor] | None = None


def choose(
    logits: Tensor, sampling: Sampling, temperature: float | Tensor, u: Tensor, ban: Tensor | None = None
) -> Choice:
    """Draws from logits [b, V] float32 by inverse distribution function at u [b] float64.

    Applied in this order: temperature (a number, or [b, 1]), removal of the ids `ban` [m], the `top_k` most probable,
    of those (renormalised) the smallest set whose probability reaches `top_p`, of those all with at least `min_p` times
    the highest probability. `logp` is that of the remaining distribution.
    """
    if isinstance(temperature, Tensor) or temperature != 1:
        logits = logits / temperature
    if ban is not None:
        logits = logits.index_fill(1, ban, -torch.inf)
    support = None
    if sampling.truncates:
        logits, support = _truncate(logits, sampling)
    highest, mode = logits.max(-1, keepdim=True)
    mass = (logits - highest).exp_()
    if sampling.greedy:
        at, whole = mode, mass.sum(-1, keepdim=True, dtype=torch.float64)
    else:
        at, whole = _inverse(mass, u.to(mass.device)[:, None])
    log_whole = highest + whole.log().float()
    ids = at if support is None else support.gather(1, at)
    top = None
    if sampling.top:
        best, places = logits.topk(min(sampling.top, logits.shape[-1]))
        top = places if support is None else support.gather(1, places), best - log_whole
    return Choice(ids.squeeze(1), (logits.gather(1, at) - log_whole).squeeze(1), support, top)


def _inverse(mass: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ([b, 1] the first id at which the cumulative mass [b, V] reaches the share u [b, 1] of the total, [b, 1]
    the total); sums are float64. An id without mass is never drawn."""
    b, V = mass.shape
    if V <= 2 * BLOCK:
        sums = mass.cumsum(-1, dtype=torch.float64)
        whole = sums[:, -1:]
        return torch.searchsorted(sums, u * whole).clamp_(max=V - 1), whole
    blocks = torch.nn.functional.pad(mass, (0, -V % BLOCK)).view(b, -1, BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    whole = sums[:, -1:]
    block = torch.searchsorted(sums, u * whole).clamp_(max=sums.shape[1] - 1)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp(min=0)), 0.0)
    within = blocks.gather(1, block[..., None].expand(-1, -1, BLOCK))[:, 0].cumsum(-1, dtype=torch.float64)
    at = torch.searchsorted(within, torch.minimum(u * whole - before, within[:, -1:]))
    return (block * BLOCK + at).clamp_(max=V - 1), whole


def _truncate(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Returns ([b, S] logits of the kept ids, most probable first, -inf beyond; [b, S] the ids, -1 beyond)."""
    if 0 < sampling.top_k < logits.shape[1]:
        logits, ids = logits.topk(sampling.top_k)
    else:
        logits, ids = logits.sort(dim=-1, descending=True, stable=True)
    keep = _keep(logits, sampling)
    keep[:, 0] = True
    width = int(keep.sum(1).max())
    keep = keep[:, :width]
    return logits[:, :width].masked_fill(~keep, -torch.inf), torch.where(keep, ids[:, :width], -1)


def mark_kept(logits: Tensor, sampling: Sampling) -> Tensor:
    """Returns [..., V] bool: the ids that `choose` keeps of these logits at temperature 1; of ties at the edge of
    `top_k` the first."""
    best, ids = logits.sort(dim=-1, descending=True, stable=True)
    k = sampling.top_k or best.shape[-1]
    return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, ids[..., :k], _keep(best[..., :k], sampling))


def _keep(best: Tensor, sampling: Sampling) -> Tensor:
    """Returns [..., S] bool: the logits, highest first, that `top_p` and `min_p` keep."""
    p = best.double().softmax(-1)
    keep = p > 0
    if sampling.top_p < 1:
        keep &= p.cumsum(-1) - p < sampling.top_p  # including the one that crosses
    if sampling.min_p > 0:
        keep &= p >= sampling.min_p * p[..., :1]
    return keep


@dataclass(frozen=True, eq=False)
class Stops:
    """A test: tokens [b, W] -> [b] bool, whether one of `strings` has just been completed. `window`: number of last
    tokens tested (-1 if missing). `spelled`: the ids of each string if it has one spelling; else the last tokens are
    decoded."""

    strings: tuple[str, ...]
    spelled: Sequence[Array] | None
    decode: Callable[[Array], str]

    @property
    def window(self) -> int:
        if self.spelled is not None:
            return max(map(len, self.spelled))
        return 4 * max(map(len, self.strings)) + 4  # a character takes at most four tokens

    def __call__(self, tokens: Array) -> Array:
        if self.spelled is None:
            texts = [self.decode(row[row >= 0]) for row in tokens[:, -self.window :]]
            return np.array(
                [
                    any(s in t for s in self.strings)
                    for t in texts
                ],
                bool,
            )
        hit = np.zeros(len(tokens), bool)
        for ids in self.spelled:
            if tokens.shape[1] >= len(ids):
                hit |= (tokens[:, -len(ids) :] == ids).all(1)
        return hit


def make_stops(
    strings: Sequence[str], spelled: Sequence[Array] | None, decode: Callable[[Array], str]
) -> Stops | None:
    """Makes the test for stop strings; None without any. Raises ValueError for an empty one."""
    if not strings:
        return None
    if not all(strings):
        raise ValueError("a stop string is empty: expected at least one character")
    return Stops(tuple(strings), spelled, decode)

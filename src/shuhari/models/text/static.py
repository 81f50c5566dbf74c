"""Samples from any causal language model of transformers: one prefill for each distinct context, then one token per row
at a time, until the last row of the batch is done.

Used for layouts without a lean forward in `decoding.py`. Left out: rows that enter later. Rows are independent: row i
reads noise row i, and a finished row leaves.

Axes: `B` rows, `U` distinct contexts, `P` tokens of the longest, `b` rows still running, `K` decisions of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from shuhari.data import Array, Sampling
from shuhari.models.text.choice import choose
from shuhari.models.text.rows import Network, NoRoom, Row, note, refuse
from shuhari.needs import Noise, Trace

SHRINK = 0.8  # finished rows are dropped from the cache if fewer than this share of its rows still run


class Cached(Network, Protocol):
    """A network with the model's own forward. `cache`: made by `new_cache`."""

    def new_cache(self, room: int) -> Any: ...
    def hidden(
        self, ids: Tensor, cache: Any = None, mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor: ...
    def logits(self, hidden: Tensor) -> Tensor: ...


@torch.no_grad()
def generate(
    network: Cached,
    contexts: Sequence[Array],
    sampling: Sampling,
    noise: Noise,
    *,
    ends: Sequence[int],
    pad: int,
    stopped: Callable[[Array], Array] | None = None,
) -> list[Trace]:
    """Continues each context until one of `ends`, a stop (`stopped`: tokens [b, so far] -> [b] bool), `max_new` tokens
    or the model's limit for that row. An end token is a decision; a token of `network.suppressed` never is. info: as in
    `Row.trace`.

    Raises ValueError for unsupported settings, NoRoom if a context is empty or fills the model.
    """
    refuse(sampling, network.vocabulary, network.suppressed)
    if not len(contexts):
        return []
    unique, index = find_distinct(contexts)
    shortest, longest = min(map(len, unique)), max(map(len, unique))
    if shortest < 1 or longest >= network.limit:
        raise NoRoom(longest if shortest else 0, network.limit)
    limits = np.minimum(sampling.max_new, network.limit - np.fromiter(map(len, contexts), np.int64, len(contexts)))
    limit = int(limits.max())  # of the row that may grow the most; each stops at its own
    temperatures = sampling.temperatures(limit).tolist()
    B, device = len(contexts), network.device
    prompt, seen = pad_left(unique, pad, limit, device)
    place = None if seen is None else seen[:, :longest].sum(1)  # [U] the position of the first new token
    memory = network.new_cache(longest + limit)
    logits = network.logits(
        network.hidden(prompt, memory, cut_mask(seen, longest), find_positions(seen, longest))[:, -1]
    )
    if len(unique) < B:
        logits = logits[index.to(device)]
        memory.batch_select_indices(index.to(device))
        seen, place = _rows(seen, index), _rows(place, index)
    suppressed = network.suppressed.to(device) if len(network.suppressed) else None
    banned = torch.cat([network.suppressed, torch.tensor(sampling.ban)]).to(device) if sampling.ban else suppressed
    tokens, logp = np.full((B, limit), -1, np.int32), np.zeros((B, limit), np.float32)
    answers = [Row(c, sampling, 0) for c in contexts]
    running = torch.arange(B)  # the rows in the cache
    alive = np.ones(B, bool)  # which of those still run
    finished = np.zeros(B, bool)
    for i in range(limit):
        choice = choose(logits, sampling, temperatures[i], noise.uniform(i)[running], suppressed if i else banned)
        rows, ids = running.numpy(), choice.ids
        drawn, there = ids.cpu().numpy(), rows[alive]
        tokens[there, i], logp[there, i] = drawn[alive], choice.logp.cpu().numpy()[alive]
        if choice.support is not None or choice.top is not None:
            note([answers[r] if a else None for r, a in zip(rows.tolist(), alive.tolist(), strict=True)], choice)
        done = np.isin(drawn, ends)
        if stopped is not None:
            done |= stopped(tokens[rows, : i + 1])
        finished[rows[alive & done]] = True
        alive = alive & ~done & (i + 1 < limits[rows])
        if not alive.any():
            break
        if alive.mean() < SHRINK:
            live = torch.from_numpy(alive.nonzero()[0])
            memory.batch_select_indices(live.to(device))
            running, ids, alive = running[live], ids[live.to(device)], np.ones(len(live), bool)
            seen, place = _rows(seen, live), _rows(place, live)
        positions = None if place is None else (place + i).clamp(max=network.limit - 1)[:, None]  # rows that are done
        logits = network.logits(network.hidden(ids[:, None], memory, cut_mask(seen, longest + i + 1), positions)[:, -1])
    for r, k in enumerate((tokens >= 0).sum(1).tolist()):
        row = answers[r]
        row.tokens, row.logp, row.ended = tokens[r, :k].copy(), logp[r, :k].copy(), bool(finished[r])
    return [
        Trace(t.action, t.logp, 0, t.info)
        for t in (
            row.trace()
            for row in answers
        )
    ]


def find_distinct(contexts: Sequence[Array]) -> tuple[list[Array], Tensor]:
    """Returns the distinct contexts, in order of appearance, and [B] the index of each row's."""
    first: dict[bytes, int] = {}
    unique: list[Array] = []
    index = []
    for c in contexts:
        at = first.setdefault(c.tobytes(), len(unique))
        if at == len(unique):
            unique.append(c)
        index.append(at)
    return unique, torch.tensor(index)


def pad_left(rows: Sequence[Array], pad: int, more: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Returns ([U, P] ids, padded on the left, so that all rows end together; [U, P + more] 1 for tokens, or None if
    all rows have one length: attention then needs no mask)."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    longest = int(lengths.max())
    flat = np.concatenate(rows).astype(np.int64)
    if int(lengths.min()) == longest:
        return torch.from_numpy(flat.reshape(len(rows), longest)).to(device), None
    there = np.arange(longest + more) >= longest - lengths[:, None]
    ids = np.full((len(rows), longest), pad, np.int64)
    ids[there[:, :longest]] = flat
    return torch.from_numpy(ids).to(device), torch.from_numpy(there.astype(np.int64)).to(device)


def find_positions(seen: Tensor | None, k: int) -> Tensor | None:
    """Returns [U, k] the position of each token, 0 on padding; None: counted from the left."""
    return None if seen is None else (seen[:, :k].cumsum(1) - 1).clamp(min=0)


def cut_mask(seen: Tensor | None, k: int) -> Tensor | None:
    """Returns the mask of the first k tokens."""
    return None if seen is None else seen[:, :k]


def _rows(x: Tensor | None, index: Tensor) -> Tensor | None:
    return None if x is None else x[index.to(x.device)]


@cache
def make_growing_layer() -> type:
    """Returns a cache layer that writes into preallocated memory: Hugging Face's own copies all keys at every token."""
    from transformers.cache_utils import DynamicLayer

    class Growing(DynamicLayer):  # type: ignore[misc]
        keys: Tensor
        values: Tensor
        room = 0
        buffers: tuple[Tensor, ...] = ()

        def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            if not self.is_initialized:
                self.lazy_initialization(keys, values)
                start = 0
            else:
                start = self.get_seq_length()
            stop = start + keys.shape[-2]
            old = (self.keys, self.values)
            if not self.buffers or stop > self.buffers[0].shape[-2]:
                room = max(self.room, stop)
                self.buffers = tuple(x.new_empty(*x.shape[:2], room, x.shape[3]) for x in (keys, values))
                for buffer, x in zip(self.buffers, old if start else (), strict=False):
                    buffer[:, :, :start] = x
            for buffer, x in zip(self.buffers, (keys, values), strict=True):
                buffer[:, :, start:stop] = x
            self.keys, self.values = (buffer[:, :, :stop] for buffer in self.buffers)
            return self.keys, self.values

        def batch_select_indices(self, indices: Tensor) -> None:
            self.keys, self.values = self.keys[indices], self.values[indices]
            self.buffers = ()  # allocated again, with room, at the next update

    return Growing

"""Boundary-Guided Policy Optimization for Memory-efficient RL of Diffusion LLMs (BGPO, 2025), catalogue 188.

A masked-diffusion language model has no log-probability, only a bound (ELBO) that is a mean over random masks of the
response. BGPO's loss is a plain sum over these draws, so the gradient is accumulated a draw at a time (`PerDraw`).
The draws are stored with the sample: old and new policy are scored on the same ones.
Left out: block-wise decoding, responses of several lengths. #244 is another law of the draws and another loss.

Axes: `B` rows, `K` draws of a row, `L` tokens of a response, `V` vocabulary, `N` draws that are scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.data import Array, Info, Payload, Sampling
from shuhari.models.sampling import honour
from shuhari.models.text.tokenizers import character_tokenizer
from shuhari.needs import Need, Noise, Trace
from shuhari.ports import Ctx
from shuhari.ratio import log_ratio


@dataclass
class MaskedLM:
    """A bidirectional transformer over prompt and response of `length` tokens, of which some are masked; the K of a row
    are `draws` masks: as many tokens as l ~ U{1..L} says, anywhere, and ℓ_j = L / l · Σ_masked log p(y_i | rest)."""

    length: int = 4
    draws: int = 16
    hidden: int = 32
    kind: Literal["exact", "chain", "bound"] = field(default="bound", init=False)
    module: nn.Module = field(init=False, repr=False)

    def build(self, task: Any) -> None:
        self.text = character_tokenizer(task.alphabet)
        self.end, self.blank = self.text.end, self.text.size
        self.module = self._net = _Net(self.text.size, self.hidden)

    def encode(self, prompt: Payload) -> Array:
        return self.text.encode(prompt)

    def decode(self, ids: Array) -> str:
        return self.text.decode(ids)

    def sample(self, contexts: Sequence[Array], sampling: Sampling, *, noise: Noise) -> list[Trace]:
        """Unmasked from left to right; then the draws, and the bound on each. info: `draws` [K, L], 1 where masked."""
        honour(sampling, (), "masked")
        B, L = len(contexts), self.length
        rows = torch.arange(B)
        y = torch.full((B, L), self.blank)
        for i in range(L):
            logits = self._logits(contexts, rows, y)[:, i]
            y[:, i] = (logits.log_softmax(-1) - (-noise.uniform(i, logits.shape[-1]).log()).log()).argmax(-1)
        u = noise.uniform(L, self.draws, 1 + L)
        count = 1 + (u[..., :1] * L).long()
        draws = u[..., 1:].argsort(-1).argsort(-1) < count  # [B, K, L]
        logp = self._elbo(contexts, y, draws, torch.ones(B, self.draws, dtype=torch.bool))
        return [
            Trace(a.astype(np.int32), p, 0, {"draws": d})
            for a, p, d in zip(y.numpy(), logp.numpy(), draws.numpy(), strict=True)
        ]

    def __call__(self, batch: Batch) -> Elbo:
        contexts: Any = [s.context for s in batch.steps]
        y = torch.from_numpy(np.stack([np.asarray(s.action, np.int64) for s in batch.steps]))
        return Elbo(self._elbo(contexts, y, batch["draws"] == 1, batch["mask"]))

    def _elbo(self, contexts: Sequence[Array], y: Tensor, draws: Tensor, wanted: Tensor) -> Tensor:
        """[B, K] the bound on each draw that is wanted; 0 elsewhere, and nothing is computed there."""
        rows, k = wanted.nonzero(as_tuple=True)
        masked, truth = draws[rows, k], y[rows]  # [N, L]
        logs = self._logits(contexts, rows, truth.masked_fill(masked, self.blank)).log_softmax(-1)
        each = logs.gather(-1, truth[..., None]).squeeze(-1) * masked
        bound = each.sum(-1) * y.shape[1] / masked.sum(-1)
        return bound.new_zeros(wanted.shape).index_put((rows, k), bound)

    def _logits(self, contexts: Sequence[Array], rows: Tensor, y: Tensor) -> Tensor:
        """[N, L, V] at the response y [N, L], behind the contexts of these rows [N]."""
        ids = [torch.from_numpy(np.asarray(contexts[i], np.int64)) for i in rows.tolist()]
        width = max(map(len, ids))
        left = torch.stack([torch.cat([c.new_full((width - len(c),), -1), c]) for c in ids])
        logits: Tensor = self._net(torch.cat([left, y], 1))
        return logits[:, width:]


class _Net(nn.Module):
    """ids [N, T], -1 for padding, `vocabulary` for a masked token -> logits [N, T, V]. Positions count from the end."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary + 1, hidden), nn.Embedding(64, hidden)
        self.block = nn.TransformerEncoderLayer(hidden, 2, 2 * hidden, dropout=0.0, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids.clamp(min=0)) + self.place(torch.arange(ids.shape[1]).flip(0))
        return self.head(self.block(x, src_key_padding_mask=ids < 0))


@dataclass
class Elbo:
    """`log_prob()` [B, K]: the bound on each draw of the masks."""

    bound: Tensor

    def log_prob(self) -> Tensor:
        return self.bound


@dataclass
class PerDraw:
    """A row for each draw, with the others masked out: a micro-batch may then be one draw, in constant memory. The
    reduction `episode` is the mean over the draws of a sample, as `row` was before."""

    needs: tuple[Need, ...] = field(default=(), init=False)

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        rows, k = batch["mask"].nonzero(as_tuple=True)
        one = batch.take(rows)
        length = torch.tensor([len(s.context) + len(s.action) for s in one.steps])  # type: ignore[arg-type]
        return one.put({"mask": torch.arange(batch.width) == k[:, None], "length": length})


@dataclass
class Boundary:
    """d_j = (ℓ_j - ℓ_j old) / L, the same masks. -A (1 + d_j) where A >= 0, else -A exp(d_j): the mean over j bounds
    -A exp(mean_j d_j) from above (Jensen), with its value and gradient where nothing has moved."""

    role: str = "policy"
    couples: Literal["row", "batch"] = field(default="row", init=False)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need((self.role,), "log_prob", live=True),)

    def __call__(self, batch: Batch, ctx: Ctx) -> tuple[Tensor, Info]:
        size = (batch["draws"] >= 0).sum(-1).clamp(min=1)
        d = log_ratio(batch[self.needs[0]], batch["logp"], batch) / size
        a = batch["advantage"]
        return -a * torch.where(a >= 0, 1 + d, d.exp()), {"log_ratio": d.detach()}

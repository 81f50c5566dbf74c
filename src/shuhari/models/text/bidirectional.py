"""A small transformer in which every token attends to every other, for models that fill in masks.

Left out: dropout (a score must be a function of its row), caches (a filled-in token changes all the others).

Axes: `N` rows, `P` tokens of the longest prompt, `L` of an answer, `T` = P + L, `D` hidden, `H` heads, `d` = D / H, `V`
vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Bidirectional(nn.Module):
    """ids [N, T] -> [N, L, D], the hidden states of the last L tokens. Padding is -1, on the left; the id `vocabulary`
    is the mask token, which is never an output.

    Positions of a prompt are counted from its end, up to `prompts` tokens, those of an answer from its beginning.
    """

    def __init__(
        self, vocabulary: int, hidden: int, layers: int, heads: int, intermediate: int, prompts: int, length: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary + 1, hidden)
        self.before, self.places = nn.Embedding(prompts, hidden), nn.Embedding(length, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, intermediate) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary)
        for embedding in (self.tokens, self.before, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        self.length = length

    def forward(self, ids: Tensor) -> Tensor:
        size = ids.shape[1] - self.length
        back = torch.arange(size - 1, -1, -1, device=ids.device)
        x = self.tokens(ids.clamp(min=0)) + torch.cat([self.before(back), self.places.weight])
        seen = ids >= 0
        attend = None if bool(seen.all()) else seen[:, None, None, :]
        for block in self.blocks:
            x = block(x, attend)
        out: Tensor = self.norm(x[:, size:])
        return out


class Block(nn.Module):
    """One layer: attention to all tokens that are not padding, then a net for each token, both added to x [N, T, D]."""

    def __init__(self, hidden: int, heads: int, intermediate: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, intermediate), nn.Linear(intermediate, hidden)

    def forward(self, x: Tensor, attend: Tensor | None) -> Tensor:
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [N, H, T, d]
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=attend).transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.second(x))))
        return out

"""Packed rows: their attention against a softmax written out row by row."""

import numpy as np
import pytest
import torch
from torch import Tensor

from shuhari.models.text import packing
from shuhari.models.text.packing import pack_rows

H, G, D, SCALE = 4, 2, 3, 0.4


def rows(seed: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Contexts of 1 to 40 tokens, some shared by several rows; 0 to 30 tokens fed; some positions asked about."""
    rng = np.random.default_rng(seed)
    unique = [rng.integers(0, 90, n).astype(np.int32) for n in (40, 1, 9, 9, 17)]
    index = rng.permutation([0, 0, 0, 0, 1, 1, 2, 3, 3, 3, 4, 4])
    fed = rng.permutation([0, 30, 2, 1, 12, 29, 30, 0, 7, 19, 3, 5])
    action = rng.integers(0, 90, (len(index), 31)).astype(np.int32)
    seen = (rng.random(action.shape) < 0.5) & (np.arange(31) <= fed[:, None])
    return unique, index, action, fed, seen


@pytest.mark.parametrize("share", [0.0, 0.9, 10.0])
@pytest.mark.parametrize("seed", range(3))
def test_every_token_sees_what_came_before_it_in_its_row(share, seed, monkeypatch) -> None:
    monkeypatch.setattr(packing, "SHARE", share)
    unique, index, action, fed, seen = rows(seed)
    p = pack_rows(unique, index, action, fed, seen, torch.device("cpu"))
    whole = [np.concatenate((unique[u], a[:k])) for u, a, k in zip(index, action, fed, strict=True)]
    if share == 0:
        assert len(p.ids) == sum(map(len, whole))
    if share == 10:
        assert len(p.ids) == sum(map(len, unique)) + fed.sum()
    assert sum(b.n for b in p.blocks) == len(p.ids) and len(p.blocks) > 3
    g = torch.Generator().manual_seed(seed)  # what a token says depends on its id and its position
    tables = [torch.randn(90 * 80, h, D, generator=g, requires_grad=True) for h in (H, G, G)]
    at = p.ids.long() * 80 + p.positions
    got = p.attention(SCALE)(0, *(t[at] for t in tables))[p.keep]

    def plain(row: np.ndarray) -> Tensor:
        q, k, v = (t[torch.from_numpy(row).long() * 80 + torch.arange(len(row))] for t in tables)
        k, v = (x.repeat_interleave(H // G, 1) for x in (k, v))
        score = torch.einsum("qhd,khd->hqk", q, k) * SCALE
        score = score.masked_fill(torch.ones(score.shape[1:]).triu(1).bool(), -torch.inf)
        return torch.einsum("hqk,khd->qhd", score.softmax(-1), v)

    want = torch.cat(
        [plain(w)[len(unique[u]) - 1 + s.nonzero()[0]] for w, u, s in zip(whole, index, seen, strict=True)]
    )
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    weight = torch.randn(got.shape, generator=g)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), tables) for x in (got, want)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_rows_of_one_length_are_not_copied() -> None:
    unique = [np.full(4, i, np.int32) for i in range(3)]
    action, fed = np.zeros((3, 6), np.int32), np.full(3, 5)
    p = pack_rows(unique, np.arange(3), action, fed, np.ones((3, 6), bool), torch.device("cpu"))
    assert [(b.n, b.size, b.keys) for b in p.blocks] == [(27, 3, None)]

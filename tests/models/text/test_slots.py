"""Keys and values in slots: rows that come, grow and go keep theirs, and attention over them is the plain one."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shuhari.models.text.pools import KEEP, NARROW, Memory, width
from shuhari.models.text.prefill import Prefix, prefill
from shuhari.models.text.slots import KeyValueCache

L, H, G, D = 2, 4, 2, 8
LEAN = SimpleNamespace(layers=L, heads=H, kv_heads=G, width=D, scale=D**-0.5)


def make_cache(n: int, fused: bool = False) -> KeyValueCache:
    made = KeyValueCache(LEAN, n, torch.device("cpu"), torch.float32)
    made.fused = fused
    return made


def prefix(P: int, g: torch.Generator) -> Prefix:
    return Prefix(np.arange(P), torch.randn(2, L, G, P, D, generator=g))


def plain(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """q [H, d] over kv [2, G, T, d] -> [H, d]."""
    k, v = (x.repeat_interleave(H // G, 0) for x in kv)
    p = (torch.einsum("hd,htd->ht", q, k) * LEAN.scale).softmax(-1)
    return torch.einsum("ht,htd->hd", p, v)


@pytest.mark.parametrize("fused", [False, True])
def test_rows_come_grow_and_go(fused: bool) -> None:
    """Against a list of tensors a row, over 300 steps with rows of many lengths that enter and leave at random."""
    g, rng, n = torch.Generator().manual_seed(0), np.random.default_rng(0), 12
    cache, free, rows = make_cache(n, fused), list(range(n)), {}  # slot -> [2, L, G, T, d]
    for _ in range(4):
        cache.memory.give(torch.full((1 << 16,), torch.nan))  # what lay in memory before does not matter
    widest = 0
    for _ in range(300):
        while free and rng.random() < 0.5:
            slots = [free.pop() for _ in range(min(len(free), int(rng.integers(1, 4))))]
            one = prefix(int(rng.choice([1, 2, 40, NARROW - 1, NARROW, 100])), g)
            cache.enter({one: slots})
            rows |= dict.fromkeys(slots, one.kv)
        cache.widen()
        slots = cache.running.tolist()
        assert sorted(slots) == sorted(rows)
        if not slots:
            continue
        positions = cache.begin()
        assert positions.tolist() == [rows[slot].shape[3] for slot in slots]
        for layer in range(L):
            q, k, v = (torch.randn(len(slots), heads, D, generator=g) for heads in (H, G, G))
            got = cache.attend(layer, q, k, v)
            for i, slot in enumerate(slots):
                here = torch.cat([rows[slot][:, layer], torch.stack([k[i], v[i]])[:, :, None]], 2)
                torch.testing.assert_close(got[i], plain(q[i], here), atol=1e-5, rtol=1e-5)
            if layer == 0:
                first = k, v
        news = torch.stack([torch.stack([first[j], (k, v)[j]], 1) for j in (0, 1)])  # [2, b, L, G, d]
        for i, slot in enumerate(slots):
            rows[slot] = torch.cat([rows[slot], news[:, i, :, :, None]], 3)
        widest = max([widest, *(r.shape[3] for r in rows.values())])
        gone = [slot for slot in rows if rng.random() < 0.02]
        cache.leave(np.array(gone, np.int64))
        for slot in gone:
            del rows[slot]
            free.append(slot)
        assert cache.used == sum(p.count * p.width for p in cache.pools)
    assert widest > 2 * NARROW
    cache.leave(np.array(list(rows)))
    assert not len(cache.running) and sum(p.kv.numel() for p in cache.pools) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_memory_serves_again_in_every_type(dtype: torch.dtype) -> None:
    memory = Memory(torch.device("cpu"), dtype)
    first = memory.take((2, 3, 5))
    assert first.shape == (2, 3, 5) and first.dtype == dtype and first.is_contiguous()
    where = first.data_ptr()
    memory.give(first)
    memory.give(memory.take((2, 0, 5)))  # nothing, of which nothing is kept
    assert memory.take((3, 9)).data_ptr() == where
    assert memory.take((3, 9)).data_ptr() != where  # it is taken
    for _ in range(5):
        memory.give(torch.empty(KEEP // 4, dtype=torch.uint8).view(dtype))
    memory.give(torch.empty(KEEP + 8, dtype=torch.uint8).view(dtype))
    assert sum(x.nbytes for x in memory._spare) == KEEP


def test_a_cache_of_half_precision() -> None:
    """Empty, entered, grown and left: as the float32 one to the rounding of the type."""
    g, made = torch.Generator().manual_seed(0), []
    one = prefix(5, g)
    for dtype in (torch.float32, torch.bfloat16):
        cache = KeyValueCache(LEAN, 3, torch.device("cpu"), dtype)
        assert not len(cache.running)
        cache.enter({Prefix(one.ids, one.kv.to(dtype)): [0, 2]})
        g.manual_seed(1)
        for _ in range(20):
            cache.widen()
            cache.begin()
            q, k, v = (torch.randn(2, heads, D, generator=g).to(dtype) for heads in (H, G, G))
            out = [cache.attend(layer, q, k, v) for layer in range(L)]
        assert out[0].dtype == dtype
        made.append(torch.stack(out).float())
    torch.testing.assert_close(made[1], made[0], atol=0.03, rtol=0.03)
    assert not torch.equal(made[1], made[0])


def test_widths() -> None:
    assert [width(t) for t in (1, NARROW, NARROW + 1, 2 * NARROW, 2 * NARROW + 1)] == [64, 64, 128, 128, 256]


class Toy:
    """A forward of one layer whose query, key and value of a token are rows of a table, turned by its position."""

    layers, heads, kv_heads, width, scale = 1, H, G, D, D**-0.5

    def __init__(self) -> None:
        g = torch.Generator().manual_seed(1)
        self.q, self.k, self.v = (torch.randn(9, heads, D, generator=g) for heads in (H, G, G))
        self.seen: list[int] = []

    def hidden(self, w, ids, positions, attend, keep):
        self.seen.append(len(ids))
        k = self.k[ids] * (1 + positions[:, None, None] / 10)
        return attend(0, self.q[ids], k, self.v[ids]).flatten(1)[keep]


def test_prefixes_that_wait_for_one_that_is_not_read_are_refused() -> None:
    cache = KeyValueCache(Toy(), 1, torch.device("cpu"), torch.float32)
    base = cache.new(np.zeros(2, np.int32))
    longer = cache.new(np.zeros(5, np.int32), cache.new(np.zeros(3, np.int32), base))
    with pytest.raises(ValueError, match="1 prefixes, none of which can be read"):
        prefill(Toy(), None, [longer], 4)
    assert longer.unread() == [base, longer.base, longer]
    while todo := longer.unread():
        prefill(Toy(), None, todo, 4)
    assert longer.hidden is not None and longer.unread() == []


@pytest.mark.parametrize("chunk", [1, 3, 5, 100])
def test_prefixes_are_read_in_chunks(chunk: int) -> None:
    toy = Toy()
    cache = KeyValueCache(toy, 1, torch.device("cpu"), torch.float32)
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 9, n).astype(np.int32) for n in (4, 7, 4, 1)]
    some = [cache.new(x) for x in ids]
    longer = cache.new(np.concatenate([ids[1], ids[0]]), some[1])
    some.append(longer)
    while any(p.hidden is None for p in some):
        prefill(toy, None, [p for p in some if p.hidden is None], chunk)
    assert max(toy.seen) <= chunk and sum(toy.seen) == 4 + 7 + 4 + 1 + 4  # what two begin with is read once
    for p in some:
        t = torch.from_numpy(p.ids.astype(np.int64))
        T = len(t)
        k = (toy.k[t] * (1 + torch.arange(T)[:, None, None] / 10)).transpose(0, 1)
        v = toy.v[t].transpose(0, 1)
        torch.testing.assert_close(p.kv[0, 0], k)
        torch.testing.assert_close(p.kv[1, 0], v)
        want = F.scaled_dot_product_attention(toy.q[t[-1]][:, None], *(x.repeat_interleave(2, 0) for x in (k, v)))
        torch.testing.assert_close(p.hidden, want.flatten(), atol=1e-5, rtol=1e-5)

"""Counter-based noise: independence of the neighbours, the laws, and the published test vector of splitmix64."""

import numpy as np
import pytest
import torch
from scipy import stats

from shuhari.kernel.noise import CounterNoise, keys, mix, uniforms


def test_splitmix64_reference_sequence():
    """The first outputs of the reference generator seeded with 1234567."""
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    golden = 0x9E3779B97F4A7C15
    states = np.array([(1234567 + i * golden) % 2**64 for i in range(5)], np.uint64)
    assert mix(states).tolist() == wanted


def test_a_row_depends_on_its_key_and_the_index_only():
    k = keys(7, "policy", "x", n=6)
    whole = CounterNoise(k)
    alone = CounterNoise(k[3:4])
    for law in ("uniform", "normal"):
        for index in (0, 5, 1):
            rows = getattr(whole, law)(index, 4)
            assert rows.shape == (6, 4) and rows[3].equal(getattr(alone, law)(index, 4)[0])
    assert not whole.uniform(0, 4)[3].equal(whole.uniform(1, 4)[3])


@pytest.mark.parametrize("block", [2, 8])
def test_blocks_change_nothing(block):
    k = keys(1, n=3)
    plain, blocked = CounterNoise(k), CounterNoise(k, block=block)
    for index in (0, 1, 7, 8, 3):
        assert plain.uniform(index).equal(blocked.uniform(index))
        assert plain.normal(index, 2).equal(blocked.normal(index, 2))


def test_rows_at_different_indices_have_the_numbers_of_their_streams():
    k = keys(2, "ragged", n=5)
    index = np.array([0, 7, 3, 1000, 7])
    got = uniforms(k, index)
    for i, at in enumerate(index.tolist()):
        assert got[i, 0] == CounterNoise(k[i : i + 1]).uniform(at).item()
    ahead = uniforms(k[:, None], index[:, None] + np.arange(4))[..., 0]
    assert ahead[2].tolist() == [CounterNoise(k[2:3]).uniform(3 + j).item() for j in range(4)]


def test_keys_depend_on_seed_and_name_and_not_on_how_many():
    assert keys(0, "a", n=3).tolist() == keys(0, "a", n=9)[:3].tolist()
    assert len({int(x) for name in ("a", "b") for seed in (0, 1) for x in keys(seed, name, n=50)}) == 200


def test_laws():
    noise = CounterNoise(keys(3, "laws", n=2000))
    uniform, normal = noise.uniform(0, 10), noise.normal(0, 10)
    assert uniform.dtype == torch.float64 and normal.dtype == torch.float32
    assert float(uniform.min()) > 0 and float(uniform.max()) < 1
    assert stats.kstest(uniform.flatten().numpy(), "uniform").pvalue > 1e-3
    assert stats.kstest(normal.flatten().numpy(), "norm").pvalue > 1e-3
    for x in (uniform, normal):  # neighbouring rows, positions and indices are uncorrelated
        y = x.double().numpy()
        assert abs(np.corrcoef(y[:-1].ravel(), y[1:].ravel())[0, 1]) < 0.03
        assert abs(np.corrcoef(y[:, :-1].ravel(), y[:, 1:].ravel())[0, 1]) < 0.03
    later = noise.uniform(1, 10).numpy()
    assert abs(np.corrcoef(uniform.numpy().ravel(), later.ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(uniform.numpy().ravel(), normal.numpy().ravel())[0, 1]) < 0.03

"""Noise of rewards: a uniform of mean 0 on decisions alone, and what is ungraded stays so."""

import torch

from shuhari.batch import Batch
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.methods.control.hl_gauss.reward_noise import RewardNoise
from shuhari.testing import context


def test_a_uniform_around_0_on_decisions_alone():
    n = 4_000
    mask = torch.ones(n, 2, dtype=torch.bool)
    mask[0] = False
    reward = torch.ones(n, 2)
    reward[1] = torch.nan
    ctx = context(noise=lambda batch, name: CounterNoise(keys(3, name, n=len(batch))))
    found = RewardNoise(3.0)(Batch({"mask": mask, "reward": reward}), ctx)["reward"]
    assert found[0].tolist() == [1.0, 1.0] and bool(found[1].isnan().all())
    noise = (found[2:] - 1).flatten()
    assert float(noise.abs().max()) < 1.5 < float(noise.abs().max()) + 0.01
    # a uniform of width 3 has variance 9 / 12, and the mean of 7,996 draws deviates by 0.01
    assert abs(float(noise.mean())) < 0.05 and abs(float(noise.var()) - 0.75) < 0.03

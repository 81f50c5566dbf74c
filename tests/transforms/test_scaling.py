"""Scaled rewards against Gymnasium's wrapper within an episode (at an end it forgets one step too early, and carries
the last reward over), and against the formula over fragments whose lanes go on and whose episodes end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from shuhari import testing
from shuhari.batch import Batch
from shuhari.kernel.abilities import ability
from shuhari.models.critics import ValueCritic
from shuhari.models.normaliser import Moments
from shuhari.transforms.scaling import ScaleRewards

REWARDS = [1.0, -2.0, 0.5, 4.0, 3.0, -1.0, 2.0, 8.0]


class Fixed(gymnasium.Env[Any, Any]):
    observation_space = action_space = spaces.Discrete(1)

    def __init__(self) -> None:
        self.t = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return 0, REWARDS[self.t], False, False, {}


def context(returns: bool = True) -> Any:
    critic = ValueCritic((4,), returns=returns)
    critic.build(SimpleNamespace(spaces=lambda: (spaces.Box(-1, 1, (2,)), None)))
    return testing.context(models={"critic": critic})


def fragment(rewards: list[list[float]], ends: list[list[bool]], resumes: list[bool]) -> Batch:
    """T rows of N lanes that decide, and the closing one; a lane that ends starts anew in the next row here."""
    T, N = len(rewards), len(rewards[0])
    B = (T + 1) * N
    last = torch.zeros(1, N)
    child = torch.where(torch.tensor(ends).flatten(), -1, torch.arange(N, B))
    return Batch(
        {
            "mask": torch.tensor([[True] * N] * T + [[False] * N]).view(B, 1),
            "reward": torch.cat([torch.tensor(rewards), last]).view(B, 1),
            "child": torch.cat([child, torch.full((N,), -1)]),
            "lane": torch.arange(N).repeat(T + 1),
            "resumes": torch.cat([torch.tensor(resumes), torch.zeros(B - N, dtype=torch.bool)]),
        }
    )


def test_step_by_step_it_is_gymnasiums_wrapper() -> None:
    env = gymnasium.wrappers.NormalizeReward(Fixed(), gamma=0.9)
    env.reset()
    scale, ctx = ScaleRewards(gamma=0.9, clip=1e9), context()
    for t, r in enumerate(REWARDS):
        want = env.step(0)[1]
        got = scale(fragment([[r]], [[False]], [t > 0]), ctx)["reward"]
        assert float(got[0, 0]) == pytest.approx(float(want), rel=1e-5)


@pytest.mark.parametrize("cuts", [[6], [2, 4], [1, 1, 3, 1]])
def test_fragments_of_any_length_give_the_returns_of_the_whole(cuts: list[int]) -> None:
    rng = np.random.default_rng(0)
    r, ends = rng.normal(2, 3, (6, 2)), rng.random((6, 2)) < 0.3
    want, running = [], np.zeros(2)
    for t in range(6):
        running = 0.8 * running + r[t]
        want.append(running.copy())
        running[ends[t]] = 0
    scale, ctx, at = ScaleRewards(gamma=0.8, clip=100.0), context(), 0
    for n in cuts:
        resumes = [False, False] if at == 0 else (~ends[at - 1]).tolist()
        batch = fragment(r[at : at + n].tolist(), ends[at : at + n].tolist(), resumes)
        scaled = scale(batch, ctx)["reward"]
        at += n
    statistic = ctx.models["critic"].module.returns
    assert float(statistic.mean) == pytest.approx(np.mean(want), rel=1e-4)
    assert float(statistic.var) == pytest.approx(np.var(want), rel=1e-4)
    torch.testing.assert_close(scaled, batch["reward"] / float(np.std(want)), rtol=1e-4, atol=1e-6)


def test_mistakes_are_told_and_outliers_clipped() -> None:
    batch = fragment([[1.0, 2.0]], [[False, False]], [False, False])
    with pytest.raises(ValueError, match=r"\[models.critic\] returns = true"):
        ScaleRewards()(batch, context(returns=False))
    with pytest.raises(ValueError, match=r"put it under \[collect\]"):
        ScaleRewards()(batch.take(torch.tensor([0])), context())
    ctx = context()
    ScaleRewards()(fragment([[0.01, -0.01]] * 50, [[True, True]] * 50, [False, False]), ctx)
    got = ScaleRewards(clip=3.0)(fragment([[9.0, float("nan")]], [[True, True]], [False, False]), ctx)["reward"]
    assert float(got[0, 0]) == 3.0 and bool(got[1, 0].isnan())


def test_a_critic_of_ones_own_keeps_the_statistic_where_it_likes() -> None:
    statistic = Moments()
    mine = testing.context(models={"critic": SimpleNamespace(return_statistic=statistic)})
    batch = fragment([[1.0, 2.0]], [[False, False]], [False, False])
    usual = context()
    assert torch.equal(ScaleRewards()(batch, mine)["reward"], ScaleRewards()(batch, usual)["reward"])
    assert float(statistic.mean) == float(ability(usual.models["critic"], "return_statistic").mean) != 0

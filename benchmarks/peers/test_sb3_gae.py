"""Our generalised advantages beside Stable-Baselines3's RolloutBuffer, with terminations, truncations and open ends.

Axes: `T` steps of a rollout, `N` lanes.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from comparing import TOLERANCE
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer

from shuhari.batch import Batch
from shuhari.transforms.returns import Gae

T, N = 50, 5


def theirs(reward, value, after, terminated, truncated, gamma, lam):
    """(advantages, returns) [T, N] of their buffer, filled as `OnPolicyAlgorithm.collect_rollouts` does: a truncation
    is a termination whose last reward holds gamma times the value of the final observation. `after` [T, N]: the value
    of what each step leads to."""
    box = spaces.Box(-1, 1, (1,))
    buffer = RolloutBuffer(T, box, spaces.Discrete(2), device="cpu", gae_lambda=lam, gamma=gamma, n_envs=N)
    start = np.ones(N, bool)
    done = terminated | truncated
    for t in range(T):
        paid = reward[t] + np.where(truncated[t], gamma * after[t], 0)
        zero = np.zeros((N, 1), np.float32)
        buffer.add(zero, zero, paid, start, torch.from_numpy(value[t]), torch.zeros(N))
        start = done[t]
    buffer.compute_returns_and_advantage(torch.from_numpy(after[-1]), done[-1])
    return buffer.advantages, buffer.returns


def ours(reward, value, after, terminated, truncated, gamma, lam):
    """The same as rows: one a step, and one that closes each episode, also where the rollout ends in the middle."""
    found: dict[str, list[float]] = {n: [] for n in ("reward", "value", "cont", "decides", "episode", "child")}
    episode, at = 0, []

    def add(**row: float) -> None:
        for name, x in row.items():
            found[name].append(x)

    for i in range(N):
        for t in range(T):
            at.append(len(found["child"]))
            add(reward=reward[t, i], value=value[t, i], cont=1, decides=1, episode=episode, child=at[-1] + 1)
            if terminated[t, i] or truncated[t, i] or t == T - 1:
                add(reward=0, value=after[t, i], cont=not terminated[t, i], decides=0, episode=episode, child=-1)
                episode += 1
    numbers = {n: torch.tensor(np.array(x, np.float32))[:, None] for n, x in found.items()}
    batch = Batch(
        {
            "mask": numbers["decides"] > 0,
            "logp": torch.zeros(len(numbers["reward"]), 1),
            "child": torch.tensor(found["child"]),
            "episode": torch.tensor(found["episode"]),
            "cont": numbers["cont"][:, 0],
            "reward": numbers["reward"],
            "critic/value": numbers["value"],
        }
    )
    out = Gae(gamma=gamma, lam=lam)(batch, SimpleNamespace(at=lambda x: x))
    return tuple(out[n][at, 0].reshape(N, T).T.numpy() for n in ("advantage", "return"))


@pytest.mark.parametrize("ends", ["none", "terminated", "truncated", "both", "every step"])
@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.95), (0.9, 1.0), (1.0, 0.0), (1.0, 1.0)])
def test_advantages_and_returns(ends, gamma, lam):
    rng = np.random.default_rng(len(ends))
    reward, value, after = (rng.normal(size=(T, N)).astype(np.float32) for _ in range(3))
    share = 1.0 if ends == "every step" else 0.15
    done, cut = rng.random((T, N)) < share, rng.random((T, N)) < 0.5
    terminated = done & {"none": cut & ~cut, "terminated": done, "truncated": ~done}.get(ends, ~cut)
    truncated = done & {"none": cut & ~cut, "terminated": ~done, "truncated": done}.get(ends, cut)
    after[:-1] = np.where((terminated | truncated)[:-1], after[:-1], value[1:])  # an episode goes on where it stood
    want = theirs(reward, value, after, terminated, truncated, gamma, lam)
    for mine, other in zip(ours(reward, value, after, terminated, truncated, gamma, lam), want, strict=True):
        np.testing.assert_allclose(mine, other, rtol=TOLERANCE["rtol"], atol=TOLERANCE["atol"])
    assert np.abs(want[0]).max() > 0.5

"""A policy that is a function: what it does, from whose numbers, and that nothing scores it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.batch import Batch
from shuhari.buffers.recordings import Played
from shuhari.config.recipe import load
from shuhari.data import Sampling
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.loop.run import train
from shuhari.models.scripted import Scripted
from shuhari.tasks.gridworld import Gridworld
from shuhari.tasks.gym import Gym

sys.path.insert(0, str(Path(__file__).parents[1] / "rollouts"))
WORLD = "worker_worlds:Expert-v7"


def built(task: Any, policy: str = "expert") -> Scripted:
    model = Scripted(policy)
    model.build(task)
    return model


def noise(n: int) -> CounterNoise:
    return CounterNoise(keys(1, "rows", n=n))


def test_it_acts_by_its_function_and_each_row_by_its_own_noise() -> None:
    model, seen = built(Gym(WORLD)), torch.tensor([[-1.5], [-0.3], [0.0], [0.4], [1.2]])
    trace = model.sample(seen, Sampling(), noise=noise(5))
    assert trace.action.shape == (5, 1) and torch.allclose(trace.action, -seen, atol=0.05)
    assert not torch.equal(trace.action, -seen) and bool(trace.logp.isnan().all())
    alone = model.sample(seen[:2], Sampling(), noise=noise(2))
    assert torch.equal(alone.action, trace.action[:2])


def test_a_task_without_an_expert_says_so() -> None:
    with pytest.raises(LookupError, match="offers no expert"):
        built(Gym("CartPole-v1"))
    chance = built(Gridworld(cells=("S.G",)), "random")
    drawn = chance.sample(torch.zeros(400, dtype=torch.long), Sampling(), noise=noise(400)).action
    assert torch.bincount(drawn).min() > 60 and drawn.dtype == torch.int64
    with pytest.raises(TypeError, match="cannot score"):
        chance(Batch({"mask": torch.ones(1, 1, dtype=torch.bool)}))


def test_what_an_expert_plays_is_what_it_records(tmp_path: Any) -> None:
    columns = Played(episodes=2).read(Gym(WORLD), 0)
    decides = columns["mask"][:, 0]
    assert torch.allclose(columns["taken"][decides], -columns["context"][decides].clamp(-2, 2), atol=0.05)


def test_it_is_measured_like_any_policy(tmp_path: Any) -> None:
    text = f"""
steps = 1
[task]
name = "gym/{WORLD}"
[models.policy]
use = "gaussian"
hidden = [4]
[rollout]
use = "episode"
[buffer]
use = "offline"
size = 8
data = {{use = "played", episodes = 2}}
[part.policy]
terms.nll = {{}}
optimiser = {{use = "adamw", lr = 1e-3}}
[models.guide]
use = "scripted"
[evaluate]
n = 3
rollout = {{use = "episode", role = "guide"}}
"""
    (tmp_path / "r.toml").write_text("format = 1\nthreads = 1\n" + text)
    (report,) = train(load(tmp_path / "r.toml"))
    assert report["evaluate/length"] == 7 and np.isfinite(report["evaluate/greedy"])

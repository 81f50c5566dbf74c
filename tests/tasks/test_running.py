"""Wrappers with running statistics are named at the start, and the raw return stands beside the scaled one."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest

from shuhari.config.recipe import load
from shuhari.loop.run import loop, open_run
from shuhari.tasks import running
from shuhari.tasks.gym import Gym

OBSERVATION, REWARD = "gymnasium.wrappers.NormalizeObservation", "gymnasium.wrappers.NormalizeReward"


class NormalizeObservationV1(gymnasium.Wrapper):
    """One of a user's, by its name."""


class Scaler(gymnasium.Wrapper):
    """One of a user's, by what it keeps."""

    def __init__(self, env):
        super().__init__(env)
        self.return_rms = object()


class Clipped(gymnasium.Wrapper):
    """Keeps nothing."""


@pytest.fixture(autouse=True)
def forget(monkeypatch: Any) -> None:
    monkeypatch.setattr(running, "_TOLD", set())


def told_of(*wrappers: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            Gym("CartPole-v1", wrappers=wrappers)
    return [str(w.message) for w in caught if "the wrapper" in str(w.message)]


@pytest.mark.parametrize(("wrapper", "named", "remedy"), [
    (OBSERVATION, "NormalizeObservation", "set normalise = true of [models.policy]"),
    (f"{__file__}:NormalizeObservationV1", "NormalizeObservationV1", "set normalise = true of [models.policy]"),
    (REWARD, "NormalizeReward", "use [collect.scale_rewards]"),
    (f"{__file__}:Scaler", "Scaler", "use [collect.scale_rewards]"),
])  # fmt: skip
def test_it_is_named_once_with_what_does_its_work(wrapper: str, named: str, remedy: str) -> None:
    (line,) = told_of(wrapper)
    assert line.startswith(f"gym/CartPole-v1: the wrapper {named} ") and remedy in line


def test_wrappers_without_statistics_are_not_named() -> None:
    assert not told_of(f"{__file__}:Clipped", "gymnasium.wrappers.RecordEpisodeStatistics")
    assert len(told_of(OBSERVATION, REWARD)) == 2


def test_the_raw_reward_of_a_step_by_hand() -> None:
    task = Gym("Pendulum-v1", wrappers=(REWARD, {"use": "gymnasium.wrappers.NormalizeReward", "gamma": 0.5}))
    problem = task.problems("test")[0]
    episode, bare = task.environment(problem), Gym("Pendulum-v1").environment(problem)
    episode.reset(problem), bare.reset(problem)
    for _ in range(5):
        _, wrapped, _ = episode.step(np.ones(1, np.float32))
        _, raw, _ = bare.step(np.ones(1, np.float32))
        assert wrapped["raw_reward"] == pytest.approx(raw["task"], rel=1e-6) and wrapped["task"] != raw["task"]
    assert task.stamps == ("reward/task", "reward/raw_reward")
    assert Gym("Pendulum-v1", wrappers=(OBSERVATION,)).stamps == ("reward/task",)


def test_a_run_reports_the_raw_return_and_trains_on_the_scaled() -> None:
    small = {"steps": 2, "rollout.lanes": 2, "buffer.size": 64, "models.policy.hidden": [4],
             "models.critic.hidden": [4], "evaluate.n": 4, "task.wrappers": [REWARD]}  # fmt: skip
    with open_run(load("baselines/ppo_cartpole").with_settings(small)) as run:
        reports = list(loop(run))
        scores = run.scores.values
    assert scores["greedy.raw_reward"] == pytest.approx(scores["length"])  # CartPole pays 1 a step
    assert scores["greedy"] != scores["greedy.raw_reward"] and scores["greedy"] == scores["greedy.task"]
    assert reports[-1]["rollout/raw_reward"] == pytest.approx(reports[-1]["rollout/length"])

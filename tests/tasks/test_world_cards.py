"""Cards of the worlds that are played by acting: what chance, an untrained policy of a baseline and the expert get of a
task as its baseline sets it, whose return is success. Bands leave room for learning above the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shuhari.config.recipe import load
from shuhari.loop.run import train
from shuhari.store import Run
from shuhari.tasks.gym import Gym

EPISODES = 60
CARDS = {  # baseline -> the most that chance gets, the most at the start, the least of the expert
    "rlpd_point": (0.15, 0.15, 1.0),
    "sac_merge": (0.15, 0.15, 0.95),
    "flow_bc_insert": (0.05, 0.05, 0.95),
}
SHORT = {"rlpd_point": {"env_steps": 50}, "sac_merge": {"env_steps": 50}, "flow_bc_insert": {"steps": 1}}


def play(task: Gym, act: Any) -> float:
    """The mean return of held-out episodes."""
    rng, total = np.random.default_rng(0), 0.0
    problems = task.problems("test")
    for i in range(EPISODES):
        episode = task.environment(problems[i])
        seen, status = episode.reset(problems[i]), None
        while status is None:
            seen, reward, status = episode.step(act(seen, rng))
            total += reward["task"]
    return total / EPISODES


@pytest.mark.parametrize("base", CARDS)
def test_chance_start_and_expert(base: str, tmp_path: Path) -> None:
    recipe = load(f"baselines/{base}")
    chance, start, best = CARDS[base]
    given = {k: v for k, v in recipe.tree["task"].items() if k != "name"}
    task = Gym(recipe.tree["task"]["name"].removeprefix("gym/"), **given)
    assert play(task, lambda _, rng: rng.uniform(-1, 1, 2).astype(np.float32)) <= chance
    assert play(task, task.expert) >= best
    list(train(recipe.with_settings({**SHORT[base], "evaluate.n": EPISODES}), tmp_path / "run"))
    summary = Run(tmp_path / "run").summary
    assert summary is not None and summary["before"]["greedy"] <= start

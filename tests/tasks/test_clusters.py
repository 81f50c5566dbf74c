"""The task of clusters against sums over a grid: its tilted law, expected score and densities in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from shuhari.buffers.recordings import Played
from shuhari.data import Step
from shuhari.tasks.clusters import Clusters

STEP = 0.02
LINE = np.arange(-3.5, 3.5, STEP)
GRID = np.stack(np.meshgrid(LINE, LINE, indexing="ij"), -1).reshape(-1, 2)


def density(law: Any) -> Any:
    normals = [stats.multivariate_normal(m, law.std**2) for m in law.means]
    return sum(w * n.pdf(GRID) for w, n in zip(law.weights, normals, strict=True))


def prompt_of(task: Clusters, i: int = 0) -> Any:
    return task.problems("test")[i].prompt.astype(np.float64)


@pytest.mark.parametrize("strength", [0.0, 1.0, 8.0])
def test_the_tilted_law_is_the_data_times_the_exponential_of_the_reward(strength: float) -> None:
    task = Clusters(clusters=3, std=0.4, reach=0.8, offset=2.0)
    problem = task.problems("test")[3]
    prompt = prompt_of(task, 3)
    miss = ((GRID - task.goal(prompt)) ** 2).sum(1) / (2 * 0.8**2)
    wanted = density(task.tilted(prompt, 0.0)) * np.exp(-strength * miss)
    wanted /= wanted.sum() * STEP**2
    np.testing.assert_allclose(density(task.tilted(prompt, strength)), wanted, atol=1e-6)
    assert task.expected(prompt, strength) == pytest.approx((wanted * np.exp(-miss)).sum() * STEP**2, abs=1e-6)
    row = 61_234
    grades = task.grade(problem, [Step.of(problem.prompt, GRID[row])])
    assert grades["score"] == pytest.approx(np.exp(-miss[row]), rel=1e-5)
    assert grades["task"] == pytest.approx(2.0 * prompt[6] - miss[row], rel=1e-5)
    assert grades["usual"] == pytest.approx(np.log(density(task.tilted(prompt, 0.0))[row]), rel=1e-4)


def test_data_are_recorded_one_decision_an_episode() -> None:
    task = Clusters(clusters=1, std=0.1)
    columns = Played(episodes=300).read(task, seed=1)
    decides = columns["mask"][:, 0]
    seen, points = columns["context"][decides].numpy(), columns["taken"][decides].numpy()
    assert len(seen) == 300 and len(columns["mask"]) == 600 and not columns["cont"][~decides].any()
    centre = seen[:, 4:6] + seen[:, 0:2]  # the one cluster stands at the angle of the prompt
    assert np.abs((points - centre).mean(0)).max() < 4 * 0.1 / 300**0.5 and abs((points - centre).std() - 0.1) < 0.01
    goal = seen[:, 4:6] + seen[:, 2:4]
    score = np.exp(-((points - goal) ** 2).sum(1) / (2 * 0.7**2))
    np.testing.assert_allclose(columns["reward/score"][decides][:, 0].numpy(), score, rtol=1e-4)


def test_prompts() -> None:
    task = Clusters()
    train, test = task.problems("train"), task.problems("test")
    assert test.size() == 128 and train.size() is None and train[0].id != test[0].id
    prompts = np.stack([train[i].prompt for i in range(500)])
    np.testing.assert_allclose((prompts[:, :2] ** 2).sum(1), 1, rtol=1e-5)
    assert len(np.unique(prompts, axis=0)) == 500 and np.abs(prompts[:, 4:6]).max() <= 0.5
    assert task.spaces()[0].contains(prompts[0]) and task.environment(train[0]) is None
    again = Clusters(seed=1).problems("test")[0].prompt
    assert not np.array_equal(again, test[0].prompt)

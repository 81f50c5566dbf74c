"""UCRL2: its counts, bounds and plans by hand, what it forgets, and that restarts that never come change nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.batch import Batch
from shuhari.learners.ucrl import Ucrl
from shuhari.models.categorical import CategoricalPolicy
from shuhari.models.tabular import Tabular
from shuhari.tasks.gym import Gym
from shuhari.tasks.worlds.average_reward import extended_value_iteration
from shuhari.tasks.worlds.riverswim import RiverSwim
from shuhari.testing import context

TASK = Gym("world/riverswim", {"states": 3}, tells={"regret": "column"})
BUFFER: Any = None


def made(**settings: Any) -> tuple[Ucrl, Tabular]:
    policy = Tabular()
    policy.build(TASK)
    learner = Ucrl(BUFFER, **settings)
    learner.bind({"policy": policy})
    return learner, policy


def walk(states: Sequence[int], actions: Sequence[int], rewards: Sequence[float]) -> Batch:
    """The rows of one lane: a decision in each state but the last."""
    n = len(actions)
    decides = (torch.arange(n + 1) < n)[:, None]
    return Batch({
        "context": torch.tensor(states), "action": torch.tensor([*actions, 0]), "mask": decides,
        "reward": torch.tensor([*rewards, 0.0])[:, None], "child": torch.tensor([*range(1, n + 1), -1]),
        "id": torch.arange(n + 1), "regret": torch.tensor([*(0.5 - r for r in rewards), torch.nan]),
    })  # fmt: skip


def learn(learner: Ucrl, *walks: Batch) -> dict[str, Any]:
    info = {}
    for batch in walks:
        info = dict(learner.update(batch, context(models={})).info)
    return info


def test_counts_and_the_plan_by_hand() -> None:
    learner, policy = made(delta=0.1, scale=0.02)
    info = learn(learner, walk([0, 1, 1, 0, 1], [1, 1, 0, 1], [0.0, 0.25, 0.0, 0.5]))
    s = learner.state
    assert s["visits"].sum() == 4 and s["visits"][0, 1, 1] == 2 and s["visits"][1, 1, 1] == s["visits"][1, 0, 0] == 1
    assert s["earned"][0, 1] == 0.5 and s["earned"][1, 1] == 0.25
    assert info == {"ucrl/plans": 1, "ucrl/restarts": 0, "ucrl/regret": 0.3125, "ucrl/regret_sum": 1.25}
    n = np.array([[1, 2], [1, 1], [1, 1]])  # visits, at least 1
    seen = np.array([[False, True], [True, True], [False, False]])
    reward = np.array([[0, 0.25], [0, 0.25], [0, 0]]) + 0.02 * np.sqrt(7 * math.log(2 * 6 * 4 / 0.1) / (2 * n))
    far = np.where(seen, 0.02 * np.sqrt(14 * 3 * math.log(2 * 2 * 4 / 0.1) / n), 2.0)
    p = np.full((3, 2, 3), 1 / 3)
    p[0, 1], p[1, 1], p[1, 0] = [0, 1, 0], [0, 1, 0], [1, 0, 0]
    _, act, _ = extended_value_iteration(reward, p, far, 0.5)
    assert policy.module.logits.argmax(1).tolist() == act.tolist()
    assert policy.module.logits.max(1).values.tolist() == [50.0] * 3


def test_it_plans_anew_once_a_pair_was_visited_as_often_as_before() -> None:
    learner, _ = made()
    plans = []
    for _ in range(16):
        plans.append(learn(learner, walk([0, 0], [0], [0.0]))["ucrl/plans"])
    assert [t + 1 for t in range(16) if t == 0 or plans[t] > plans[t - 1]] == [1, 2, 4, 8, 16]


def test_a_window_has_the_counts_of_the_latest_alone() -> None:
    learner, _ = made(window=3)
    learn(learner, walk([0, 1, 2], [1, 1], [0.5, 0.25]), walk([2, 1, 0], [0, 0], [0.0, 1.0]))
    latest, _ = made()
    learn(latest, walk([1, 2, 1, 0], [1, 0, 0], [0.25, 0.0, 1.0]))
    for name in ("visits", "earned"):
        assert torch.equal(learner.state[name], latest.state[name])


@pytest.mark.parametrize(("restarts", "left"), [("all", 0.0), ("one", 2.0)])
def test_a_changed_stream_forgets_all_or_its_own(restarts: Any, left: float) -> None:
    """State 0 leads to itself 15 times and to state 2 then: after 15 of these the odds are 26 million to one."""
    learner, _ = made(restarts=restarts)
    stays = walk([1, 0, *[0] * 15, 1], [0, *[0] * 15, 1], [0.0] * 17)
    info = learn(learner, stays, walk([1, 0, 2], [0, 0], [0.0] * 2))
    assert info["ucrl/restarts"] == 0
    for _ in range(7):  # one outcome each
        info = learn(learner, walk([0, 2], [0], [0.0]))
    assert info["ucrl/restarts"] == 1
    visits = learner.state["visits"]
    assert visits[1, 0].sum() == left and visits[0, 0, 0] == 0 and "0.0" not in learner.state["streams"]


def test_what_it_cannot_learn_is_refused() -> None:
    learner, _ = made()
    with pytest.raises(ValueError, match=r"rewards from -1 to 0\.5"):
        learn(learner, walk([0, 1, 1], [1, 1], [0.5, -1.0]))
    net = CategoricalPolicy()
    net.build(Gym("CartPole-v1"))
    with pytest.raises(TypeError, match="CategoricalPolicy: expected a tabular one"):
        learner.bind({"policy": net})


def live(n: int, period: int, **settings: Any) -> list[float]:
    """The mean regret of each of n draws of 40 decisions in the river of six states."""
    world = RiverSwim(period=period)
    policy, rng, out = Tabular(), np.random.default_rng(0), []
    policy.build(SimpleNamespace(spaces=lambda: (world.observation_space, world.action_space)))  # type: ignore[arg-type]
    learner = Ucrl(BUFFER, scale=0.1, **settings)
    learner.bind({"policy": policy})
    place, _ = world.reset(seed=0)
    for _ in range(n):
        right = policy.module.logits.softmax(1)[:, 1].tolist()
        states, actions, rewards = [place], list[int](), list[float]()
        for _ in range(40):
            actions.append(int(rng.random() < right[place]))
            place, reward, _, _, _ = world.step(actions[-1])
            states.append(place)
            rewards.append(reward)
        learn(learner, walk(states, actions, rewards))
        out.append(world.gain - sum(rewards) / 40)
    return out


def test_restarts_that_never_come_change_nothing() -> None:
    assert live(40, 500) == live(40, 500, restarts="all", rate=1e-300) != live(40, 500, restarts="all")


def test_the_river_is_learnt_and_after_a_change_again() -> None:
    """Of a gain of 0.43. Without restarts the first half stays in its counts."""
    calm = live(150, 0)
    assert np.mean(calm[:6]) > 0.3 and np.mean(calm[-50:]) < 0.1
    assert np.mean(live(300, 6000, restarts="all")[-50:]) < 0.1 < 0.2 < np.mean(live(300, 6000)[-50:])

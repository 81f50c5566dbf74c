"""Random actions for trials of environments: uniform over what a mask allows; snapshots of MuJoCo."""

from __future__ import annotations

from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from shuhari.tasks.gym import Gym
from shuhari.tasks.snapshots import restore, sample_action, snapshot
from shuhari.testing import check_environment


@pytest.mark.parametrize(
    ("space", "mask", "allowed"),
    [
        (spaces.Discrete(3, start=2), [0, 1, 1], [3, 4]),
        (spaces.MultiDiscrete([2, 3], start=[1, 0]), [1, 0, 0, 1, 1], [(1, 1), (1, 2)]),
        (spaces.MultiBinary(2), [1, 0, 1, 1], [(0, 0), (0, 1)]),  # a pair for each bit: whether it may be 0, and 1
    ],
)
def test_random_actions_are_those_that_a_mask_allows(space: Any, mask: list[int], allowed: list[Any]) -> None:
    space.seed(0)
    drawn = [sample_action(space, {"action_mask": np.array(mask, np.int8)}) for _ in range(200)]
    assert all(space.contains(x) for x in drawn)
    count = Counter(tuple(x.tolist()) if x.shape else int(x) for x in drawn)
    assert sorted(count) == allowed and min(count.values()) > 70  # 100 each, give or take 7
    assert space.contains(sample_action(space, {"observation": 1})) and space.contains(sample_action(space, 1))


class Switches(gymnasium.Env[Any, Any]):
    """Two switches of which only the second may be turned on."""

    action_space = spaces.MultiBinary(2)
    observation_space = spaces.Dict({"observation": spaces.Box(0, 1, (2,)), "action_mask": spaces.MultiBinary(4)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.see(np.zeros(2)), {}

    def see(self, lights: Any) -> Any:
        return {"observation": lights.astype(np.float32), "action_mask": np.array([1, 0, 1, 1], np.int8)}

    def step(self, action: Any) -> Any:
        assert action[0] == 0
        return self.see(np.asarray(action)), float(action[1]), False, False, {}


def test_a_world_whose_bits_are_masked_can_be_checked() -> None:
    check_environment(Switches())


@pytest.mark.parametrize(("name", "simulates"), [("Reacher-v5", True), ("Hopper-v5", True), ("Ant-v5", False)])
def test_mujoco_is_saved_by_its_simulator_where_that_is_all(name: str, simulates: bool) -> None:
    """Stored actions replayed after a restore, over another episode, give the same observations to the bit. Ant reads
    what lags behind the simulator's state, and is replayed."""
    task = Gym(name)
    assert task.simulates is simulates and not task.copies
    env, other = task.make(), task.make()
    env.reset(seed=3)
    other.reset(seed=4)
    env.action_space.seed(0)
    for _ in range(20):
        env.step(env.action_space.sample())
    state = snapshot(env)
    assert ("physics" in state) is simulates
    actions = [env.action_space.sample() for _ in range(20)]
    seen = [env.step(a)[:2] for a in actions]
    restore(other, state)
    for action, (observation, reward) in zip(actions, seen, strict=True):
        o, r, *_ = other.step(action)
        assert np.array_equal(o, observation) and r == reward
    assert np.array_equal(env.reset()[0], other.reset()[0])

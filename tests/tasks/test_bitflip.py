"""Bit flipping: rewards and ends by hand, the functions of goals in rows as alone, and how rarely chance succeeds."""

from __future__ import annotations

import numpy as np
import pytest

from shuhari.tasks.gym import Gym
from shuhari.tasks.worlds.bitflip import BitFlip
from shuhari.testing import check_environment


def test_an_episode_by_hand() -> None:
    world = BitFlip(bits=4)
    seen, _ = world.reset(seed=3)
    wrong = np.flatnonzero(seen["observation"] != seen["desired_goal"])
    assert len(wrong) and world.observation_space.contains(seen)
    for i, bit in enumerate(wrong):
        seen, reward, over, late, info = world.step(bit)
        last = i == len(wrong) - 1
        assert (reward, over, late, info["is_success"]) == (0.0 if last else -1.0, last, False, float(last))
    assert (seen["achieved_goal"] == seen["desired_goal"]).all()
    seen, _ = world.reset(seed=4)
    right = int((seen["observation"] == seen["desired_goal"]).argmax())
    told = [world.step(right)[1:4] for _ in range(4)]
    assert told[-1] == (-1.0, False, True) and not any(over for _, over, _ in told)


def test_goals_in_rows_are_as_alone() -> None:
    world, rng = BitFlip(bits=3), np.random.default_rng(0)
    a, g = rng.integers(2, size=(2, 50, 3))
    alone = [float(world.compute_reward(x, y, {})) for x, y in zip(a, g, strict=True)]
    assert world.compute_reward(a, g, [{}] * 50).tolist() == alone
    assert alone == [0.0 if (x == y).all() else -1.0 for x, y in zip(a, g, strict=True)]
    assert world.compute_terminated(a, g, {}).tolist() == [r == 0 for r in alone]


def test_it_is_an_environment_and_bits_have_bounds() -> None:
    check_environment(Gym("world/bitflip"))
    with pytest.raises(ValueError, match="bits is 1"):
        BitFlip(bits=1)


def test_the_expert_always_succeeds_and_chance_hardly_ever() -> None:
    world, rng, done = BitFlip(), np.random.default_rng(0), np.zeros(2)
    for seed in range(300):
        for who, act in enumerate((world.expert, lambda seen, rng: int(rng.integers(8)))):
            seen, over, late = world.reset(seed=seed)[0], False, False
            while not (over or late):
                seen, _, over, late, _ = world.step(act(seen, rng))
            done[who] += over
    assert done[0] == 300 and done[1] / 300 < 0.12

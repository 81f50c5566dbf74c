"""Distractors: the environment within is as it is alone, and the rest follows the logistic map."""

import gymnasium
import numpy as np

from shuhari.tasks.worlds.distracted import Distracted


def test_pendulum_and_maps_side_by_side():
    env, alone = Distracted(dims=3, size=2.0), gymnasium.make("Pendulum-v1")
    seen, plain = env.reset(seed=4)[0], alone.reset(seed=4)[0]
    x = (seen[3:] / 2 + 1) / 2
    for _ in range(200):
        action = np.array([0.7], np.float32)
        seen, reward, finished, cut, _ = env.step(action)
        plain, expected, *ends, _ = alone.step(action)
        assert seen[:3].tolist() == plain.tolist() and reward == float(expected) and [finished, cut] == ends
        np.testing.assert_allclose(seen[3:], 2 * (2 * (4 * x * (1 - x)) - 1), atol=1e-4)
        x = (seen[3:] / 2 + 1) / 2
        assert env.observation_space.contains(seen)
    assert cut

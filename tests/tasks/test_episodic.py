"""The worlds of fixed length: steps of their tables, lanes to the same bits, and regret by enumeration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shuhari.tasks.lanes import Lanes
from shuhari.tasks.worlds.episodic import Episodic
from shuhari.tasks.worlds.finite_horizon import evaluate_policy

LAYOUTS = ["river", "invest", "random"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_expected_regret_is_what_a_policy_lacks_of_the_best(layout: Any) -> None:
    world = Episodic(layout=layout, places=4, horizon=3, instance=2)
    A = world.r.shape[1]
    assert np.allclose(world.p.sum(2), 1) and world.r.min() >= 0 and world.r.max() <= 1
    policy = np.random.default_rng(0).dirichlet(np.ones(A), (3, 4))
    there, total = np.eye(4)[0], 0.0
    world.reset(seed=0)
    for t in range(3):
        gap = np.zeros((4, A))
        for s, a in np.ndindex(4, A):
            world.at, world.place = t, int(s)
            gap[s, a] = world.step(int(a))[4]["regret"]
        does = there[:, None] * policy[t]
        total += float((does * gap).sum())
        there = np.einsum("sa,sax->x", does, world.p)
    own = float(policy[0, 0] @ evaluate_policy(world.p, world.r, policy)[0, 0])
    assert total == pytest.approx(world.q[0, 0].max() - own) and total > 1e-3
    assert all(world.expert(t * 4 + s, None) == world.q[t, s].argmax() for t, s in np.ndindex(3, 4))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lanes_step_to_the_same_bits_and_as_the_tables_say(layout: Any) -> None:
    N = 400
    apart, together = ([Episodic(layout=layout, places=5, horizon=6) for _ in range(N)] for _ in range(2))
    for envs in (apart, together):
        for i, env in enumerate(envs):
            assert env.reset(seed=i)[0] == 0
    lanes, rng = Lanes(together), np.random.default_rng(1)
    world, count, moved = apart[0], 0, np.zeros(5)
    for t in range(6):
        actions = rng.integers(world.r.shape[1], size=N)
        before = lanes.place.copy()
        seen, reward, over, cut, info = lanes.act(actions)
        for i, env in enumerate(apart):
            one = env.step(int(actions[i]))
            assert one[:3] == (seen[i], reward[i], over[i]) and one[4]["regret"] == info["regret"][i] and not cut[i]
        picked = (before == 0) & (actions == 1)
        count, moved = count + picked.sum(), moved + np.bincount(seen[picked] - (t + 1) * 5, minlength=5)
    assert over.all()
    np.testing.assert_allclose(moved / count, world.p[0, 1], atol=4 * 0.5 / count**0.5)

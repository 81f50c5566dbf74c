"""The combination lock: its values against another dynamic programme and by hand, its regret by enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from shuhari.data import Array
from shuhari.tasks.gym import Gym
from shuhari.tasks.worlds.finite_horizon import evaluate_policy, iterate_from_random
from shuhari.tasks.worlds.lock import Lock


def flat(world: Lock) -> tuple[Array, Array]:
    """(p [P, A, P], r [P, A]) of the places (step, state), with those behind the last step, which pay nothing."""
    H, A = world.horizon, world.actions
    p, r = np.zeros((H + 1, 3, A, H + 1, 3)), np.zeros((H + 1, 3, A))
    for t in range(H):
        p[t, :, :, t + 1], r[t] = world.p[t], world.r[t]
    P = 3 * (H + 1)
    return p.reshape(P, A, P), r.reshape(P, A)


def test_a_trap_by_hand() -> None:
    """Two steps, two actions, a lure of 1/4, one action in four is drawn: 7/8 of what is sent is done."""
    world = Lock(horizon=2, actions=2, slip=0.25, lure=0.25)
    hit = 7 / 8
    last = hit + (1 - hit) / 4  # of the right action at the last step
    best = hit * last + (1 - hit) / 4
    wrong = (1 - hit) * last + hit / 4
    for state in (0, 1):
        right = int(world.right[0, state])
        assert world.q[0, state, [right, 1 - right]] == pytest.approx([best, wrong])
        assert world.q[1, state].max() == pytest.approx(last)
    assert not world.q[:, 2].any() and world.best == pytest.approx(best)


@pytest.mark.parametrize("slip", [0.0, 0.3])
def test_values_are_those_of_another_dynamic_programme(slip: float) -> None:
    world = Lock(horizon=3, actions=3, slip=slip, lure=0.2, combination=5)
    p, r = flat(world)
    q = iterate_from_random(p, r, 3, 3)
    for t in range(3):
        np.testing.assert_allclose(q[t, 3 * t : 3 * t + 3], world.q[t], atol=1e-12)
    assert world.best == pytest.approx(q[0, :2].max(1).mean())


@pytest.mark.parametrize("slip", [0.0, 0.3])
def test_the_expected_sum_of_regret_is_what_a_policy_lacks_of_the_best(slip: float) -> None:
    """Of a random policy, over all ways that an episode may go: the performance difference lemma."""
    world = Lock(horizon=3, actions=2, slip=slip, lure=0.2, combination=1)
    policy = np.random.default_rng(0).dirichlet(np.ones(2), (3, 3))
    gap = np.empty((3, 3, 2))
    world.reset(seed=0)
    for t, s, a in product(range(3), range(3), range(2)):
        world.at, world.state = t, s
        gap[t, s, a] = world.step(a)[4]["regret"]
    there, total = np.array([0.5, 0.5, 0.0]), 0.0
    for t in range(3):
        does = there[:, None] * policy[t]
        total += float((does * gap[t]).sum())
        there = np.einsum("sa,sax->x", does, world.p[t])
    p, r = flat(world)
    own = evaluate_policy(p, r, np.stack([np.concatenate([policy.reshape(9, 2), np.full((3, 2), 0.5)])] * 3))
    value = (policy[0] * own[0, :3]).sum(1)[:2].mean()
    assert total == pytest.approx(world.best - value, abs=1e-12) and total > 0.1


@pytest.mark.parametrize("slip", [0.0, 0.4])
def test_steps_are_those_of_the_tables(slip: float) -> None:
    world = Lock(horizon=3, actions=3, slip=slip, lure=0.5, looks=2)
    n, after, paid = 4000, np.zeros(6), np.zeros(6)
    world.reset(seed=2)
    for t, action in ((0, int(world.right[0, 1])), (2, int(world.right[2, 1])), (2, int(world.right[2, 1] + 1) % 3)):
        after[:], paid = 0, []
        for _ in range(n):
            world.at, world.state = t, 1
            seen, reward, over, cut, _ = world.step(action)
            after[seen % 6] += 1
            paid.append(reward)
            assert over == (t == 2) and not cut and seen // 6 == t + 1
        wanted = np.repeat(world.p[t, 1, action], 2) / 2  # each look as often
        assert after / n == pytest.approx(wanted, abs=4 * 0.5 / n**0.5)
        assert np.mean(paid) == pytest.approx(world.r[t, 1, action], abs=4 * 0.5 / n**0.5)


def test_it_is_a_task_that_tells_features_and_regret() -> None:
    task = Gym("world/lock", {"horizon": 2, "actions": 2, "looks": 3}, tells={"regret": "column"})
    assert task.copies and "regret" in task.extras
    assert [int(s.n) for s in task.spaces()] == [27, 2]  # type: ignore[attr-defined]
    phi = task.make().get_wrapper_attr("features")
    assert phi.shape == (27, 2, 6) and (phi.sum(2) == 1).all()
    alike = (phi[:, None] == phi[None]).all((2, 3))  # observations that it does not tell apart: of one state
    state = np.arange(27) % 9 // 3
    assert (alike == (state[:, None] == state[None])).all()
    assert task.scene.place(9 + 8) == (1.5, 0.5) and task.scene.place(18) == (2.5, 2.5)  # a trap; behind the last step
    assert Lock(combination=1).right.tolist() != Lock(combination=2).right.tolist()
    with pytest.raises(ValueError, match="lure is 2"):
        Lock(lure=2.0)

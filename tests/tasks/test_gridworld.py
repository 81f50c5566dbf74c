"""The gridworld: its tensors against what `step` does, and worlds small enough to work by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shuhari.data import Problem, Status, Step
from shuhari.tasks.gridworld import Gridworld

UP, RIGHT, DOWN, LEFT = range(4)


def at(world: Gridworld, state: int, key: str = "k", t: int = 0) -> Any:
    walk = world.environment(Problem("gridworld", key, None))
    walk.restore({"key": key, "state": state, "t": t, "ended": False})
    return walk


def test_a_world_by_hand() -> None:
    """S.  over #G: right then down reaches the goal; walls and edges stop."""
    world = Gridworld(cells=("S.", "#G"), goal=5.0, living=-1.0)
    walk = world.environment(world.problems("train")[0])
    assert walk.reset(world.problems("train")[0]) == 0
    assert walk.step(DOWN) == (0, {"task": -1.0}, None)  # the wall
    assert walk.step(LEFT) == (0, {"task": -1.0}, None)  # the edge
    assert walk.step(np.int64(RIGHT)) == (1, {"task": -1.0}, None)
    assert walk.step(DOWN) == (3, {"task": 4.0}, Status.FINISHED)
    with pytest.raises(RuntimeError, match="ended"):
        walk.step(UP)


@pytest.mark.parametrize("slip", [0.0, 0.3])
def test_tensors_against_steps(slip: float) -> None:
    world = Gridworld(cells=("S.H", ".#.", "..G"), goal=2.0, hole=-1.0, living=-0.25, slip=slip)
    n = 1 if slip == 0 else 1500
    assert world.P.shape == (9, 4, 9) and np.allclose(world.P.sum(2), 1)
    for s in range(9):
        for a in range(4):
            if world.terminal[s] or s == 4:
                assert world.P[s, a, s] == 1 and world.R[s, a] == 0
                continue
            seen, rewards = np.zeros(9), 0.0
            for i in range(n):
                to, reward, status = at(world, s, f"k{i}", i % 40).step(a)
                seen[to] += 1 / n
                rewards += reward["task"] / n
                assert (status is Status.FINISHED) == bool(world.terminal[to])
            assert np.allclose(seen, world.P[s, a], atol=4.5 * 0.5 / n**0.5 if slip else 0)
            assert rewards == pytest.approx(float(world.R[s, a]), abs=4.5 * 1.5 / n**0.5 if slip else 1e-12)
            assert set(np.flatnonzero(seen)) <= set(np.flatnonzero(world.P[s, a]))


def test_slips_go_to_the_sides() -> None:
    world = Gridworld(cells=("...", ".S.", "..G"), slip=0.4)
    assert world.P[4, UP].tolist() == pytest.approx([0, 0.6, 0, 0.2, 0, 0.2, 0, 0, 0])
    corner = world.P[0, UP]  # up and left both stay
    assert corner[0] == pytest.approx(0.8) and corner[1] == pytest.approx(0.2)


def test_values_by_linear_algebra() -> None:
    """A corridor of known length: the value of always going right is gamma^(distance - 1)."""
    world, gamma = Gridworld(cells=("S...G",)), 0.9
    P, R = world.P[:, RIGHT], world.R[:, RIGHT]
    value = np.linalg.solve(np.eye(5) - gamma * P, R)
    assert value.tolist() == pytest.approx([gamma**3, gamma**2, gamma, 1, 0])


def test_the_limit_truncates_and_the_goal_finishes() -> None:
    world = Gridworld(cells=("S.G",), limit=2)
    walk = at(world, 0)
    assert walk.step(LEFT)[2] is None and walk.step(LEFT)[2] is Status.TRUNCATED
    walk = at(world, 0)
    assert walk.step(RIGHT)[2] is None and walk.step(RIGHT)[2] is Status.FINISHED  # at the limit, but there


def test_snapshots_go_on_as_if_undisturbed() -> None:
    world = Gridworld(cells=("S....", ".....", "....G"), slip=0.5, limit=60)
    problem = world.problems("train")[3]
    walk, copy = world.environment(problem), world.environment(problem)
    walk.reset(problem)
    moves = np.random.default_rng(0).integers(0, 2, 60) + 1
    for move in moves[:5]:
        walk.step(move)
    assert copy.restore(walk.snapshot()) == walk.state
    ended = False
    for move in moves[5:]:
        mine = walk.step(move)
        assert mine == copy.step(move)
        if mine[2]:
            ended = True
            break
    assert ended
    started = Problem("gridworld", "x", None, start={"key": "x", "state": 7, "t": 1, "ended": False})
    assert world.environment(started).reset(started) == 7


def test_starts_vary_with_the_problem_only() -> None:
    world = Gridworld(cells=("S.S", "S.G"))
    train = world.problems("train")
    first = [world.environment(train[i]).reset(train[i]) for i in range(60)]
    assert set(first) == {0, 2, 3}
    assert first == [world.environment(train[i]).reset(train[i]) for i in range(60)]


def test_score_and_spaces() -> None:
    world = Gridworld(cells=("SG",))
    decided = Step.of(0, np.int64(1), np.zeros(1, np.float32))
    problem = world.problems("test")[0]
    assert world.grade(problem, [decided, Step.closing(1, 0, 0.0)]) == {"score": 1.0}
    assert world.grade(problem, [decided, Step.closing(0, 0, 1.0)]) == {"score": 0.0}
    assert [space.n for space in world.spaces()] == [2, 4]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cells": ("S", "G.")}, "one length"),
        ({"cells": ()}, "one length"),
        ({"cells": ("SX",)}, "'X'"),
        ({"cells": ("..",)}, "no 'S'"),
        ({"slip": 2.0}, "slip is 2.0"),
        ({"limit": 0}, "limit is 0"),
    ],
)
def test_bad_fields(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Gridworld(**fields)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the action is 4"):
        at(Gridworld(cells=("SG",)), 0).step(4)

"""Lanes that are stepped together against the same lanes stepped one by one: what is seen, earned and told, and what the
environments hold afterwards, are the same bits."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from shuhari import registry, testing
from shuhari.models.categorical import CategoricalPolicy
from shuhari.models.gaussian import GaussianPolicy
from shuhari.rollouts.vector.lanes import Inline, allocate, find_extras
from shuhari.rollouts.vector.vector import VectorRollout
from shuhari.store.codec import dumps, loads
from shuhari.tasks.gym import Gym
from shuhari.tasks.lanes import are_alike
from shuhari.testing.compare import differences

COST, REGRET = {"cost": "reward"}, {"regret": "column"}
HAZARDS = {"noise": 0.2, "hazards": ((1.5, 1.5, 1.2), (5.0, 4.0, 2.0))}
WORLDS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {  # settings with which what there is comes up
    "point": ("world/point", {"limit": 30}, {}),
    "point, fast": ("world/point", {"maze": "u", "speed": 0.9, "inertia": 0.0, "cost": 0.1}, {}),
    "point, hazards": ("world/point", HAZARDS, COST),
    "point, final": ("world/point", {**HAZARDS, "maze": "G.\n.S", "limit": 9}, {"cost": "final"}),
    "point, executed": ("world/point", {"limit": 12}, {"executed": "action"}),
    "insert": ("world/insert", {}, {}),
    "insert, wide": ("world/insert", {"half": 0.5, "stride": 0.4, "noise": 0.1}, {}),
    "insert, still": ("world/insert", {"noise": 0.0, "slide": 0.0, "limit": 7}, {}),
    "merge": ("world/merge", {"limit": 25}, {}),
    "merge, dense": ("world/merge", {"ramp": 60.0, "cars": 11}, {}),
    "cmdp": ("world/cmdp", {}, COST),
    "riverswim": ("world/riverswim", {"period": 5, "limit": 33}, REGRET),
    "sticky_maze": ("world/sticky_maze", {}, {}),
    "sticky_maze, free": ("world/sticky_maze", {"sticky": 1.0, "horizon": 4, "walls": 0.0}, {}),
    "cut": ("world/point", {"max_episode_steps": 8}, {}),
}


def play(task: Gym, N: int, steps: int, few: int, rng: Any, wild: float = 0.0) -> list[Any]:
    """All that comes of the same random actions; lanes that end begin anew a step later, some others at random, of
    which half at a snapshot. wild: the share of actions that are NaN or infinite."""
    space, does = task.spaces()
    actor = Inline(task.make, range(N))
    actor.few = few
    assert actor._alike
    seen, reward, out = allocate(space, N), np.full(N, np.nan), []
    extras = {n: np.full((N, *x.shape), x) for n, x in find_extras(task).items()}
    actor.start(list(range(5, 5 + N)), seen)
    start = {"env": actor.snapshots()[0], "last": seen[0].copy()}
    fresh: dict[int, Any] = {}
    for _ in range(steps):
        taken: Any
        if does.shape:
            taken = rng.uniform(-1.3, 1.3, (N, *does.shape)).astype(np.float32)
            taken = np.where(rng.random(taken.shape) < 0.2, np.sign(taken) * rng.integers(2, size=taken.shape), taken)
            taken = np.where(rng.random(taken.shape) < wild, np.nan, taken).astype(np.float32)
        else:
            taken = rng.integers(does.n, size=N).tolist()
        actor.post(slice(0, N), taken, fresh)
        over = actor.poll(slice(0, N), seen, reward, extras)
        fresh = {i: None for i, _ in over}
        fresh |= {int(i): start if rng.random() < 0.5 else None for i in np.flatnonzero(rng.random(N) < 0.05)}
        out.append([seen.copy(), reward.copy(), {n: x.copy() for n, x in extras.items()}, sorted(over)])
    out.append(actor.snapshots())
    return out


@pytest.mark.parametrize("case", WORLDS)
def test_together_is_one_by_one(case: str) -> None:
    path, kwargs, tells = WORLDS[case]
    task = Gym(path, kwargs, tells=tells)
    together, alone = (play(task, 7, 700, few, np.random.default_rng(3)) for few in (1, 8))
    assert dumps(together) == dumps(alone)  # bits, the types of numbers and the sign of zeros included
    assert any(how for *_, over in together[:-1] for _, how in over)  # episodes ended


@pytest.mark.parametrize("case", [c for c in WORLDS if c.startswith(("point", "insert"))])
def test_actions_that_are_no_numbers(case: str) -> None:
    path, kwargs, tells = WORLDS[case]
    task = Gym(path, kwargs, tells={k: v for k, v in tells.items() if v != "action"})
    found = []
    for few in (1, 8):
        try:
            found.append(dumps(play(task, 7, 100, few, np.random.default_rng(3), wild=0.05)))
        except ValueError as error:  # an observation that holds a NaN is refused either way
            found.append(str(error).encode())
    assert found[0] == found[1]


def test_every_world_that_has_the_form_is_here() -> None:
    have = {n for n in registry.names("world") if "step_lanes" in vars(registry.find("world", n))}
    assert have == {path.removeprefix("world/") for path, *_ in WORLDS.values()}


@pytest.mark.parametrize("path", ["world/point", "world/cmdp"])
def test_rollouts_in_workers_rings_and_after_a_resume(path: str) -> None:
    """Two workers of a ring, of eight and four lanes a slot, collect what one process does that steps one by one; half
    of it by a rollout that was saved."""
    task = Gym(path, tells=COST if path == "world/cmdp" else {})
    model = (CategoricalPolicy if path == "world/cmdp" else GaussianPolicy)((8,))
    torch.manual_seed(0)
    model.build(task)
    ctx = testing.context(models={"policy": model})
    rollouts = [VectorRollout(lanes=16, **more) for more in ({}, {}, {"workers": 2})]
    for rollout in rollouts:
        rollout.open(task, 7)
    alone: Any = rollouts[0]._actor
    alone._alike = False
    first = [rollout.collect(1000, ctx) for rollout in rollouts]
    saved = [dumps(rollout.state) for rollout in rollouts]
    assert saved[0] == saved[1] == saved[2]
    late = VectorRollout(lanes=16)
    late.open(task, 7)
    late.state = loads(saved[0])
    second = [rollout.collect(1000, ctx) for rollout in (*rollouts, late)]
    for batch in (*first[1:], *second[1:]):
        like = first[0] if any(batch is b for b in first) else second[0]
        assert batch.names() == like.names()
        assert all(dumps(batch[n]) == dumps(like[n]) for n in like.names())
    for rollout in (*rollouts, late):
        rollout.close()

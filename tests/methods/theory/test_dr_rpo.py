"""DR-RPO: the worst case of a policy by enumerating shifts, and what the recipe sets.

The robust backup is tested in `tests/learners/test_regularised.py`: by hand, by the dual and by linear programming.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from built import holds
from shuhari.config.build import build_stage
from shuhari.lab import demonstrations
from shuhari.methods.theory.dr_rpo.worst_case import WorstCase, evaluate_worst
from shuhari.tasks.gym import Gym
from shuhari.tasks.worlds.episodic import Episodic
from shuhari.tasks.worlds.finite_horizon import evaluate_policy
from shuhari.testing import context


def test_no_shift_is_the_policy_s_own_value() -> None:
    world = Episodic(layout="random", places=4, horizon=5)
    policy = np.random.default_rng(0).dirichlet(np.ones(3), (5, 4))
    own = (policy[0] * evaluate_policy(world.p, world.r, policy)[0]).sum(1)
    found = evaluate_worst(torch.from_numpy(world.p), torch.from_numpy(world.r), torch.from_numpy(policy), 0.0)
    np.testing.assert_allclose(found.numpy(), own, atol=1e-12)


def test_the_worst_case_is_the_least_over_all_shifts() -> None:
    """Two places, two steps, one action each: every shift of 0.2 from one place to the other, for each place of the
    first step; the second step pays whatever its place does."""
    p = torch.tensor([[[0.7, 0.3]], [[0.1, 0.9]]], dtype=torch.double)
    r = torch.tensor([[0.2], [1.0]], dtype=torch.double)
    every = []
    for shift in product((-0.2, 0.0, 0.2), repeat=2):
        q = np.array([[0.7 + shift[0], 0.3 - shift[0]], [0.1 + shift[1], 0.9 - shift[1]]])
        if q.min() >= 0:
            every.append(r[:, 0].numpy() + q @ r[:, 0].numpy())
    found = evaluate_worst(p, r, torch.ones(2, 2, 1, dtype=torch.double), 0.2)
    np.testing.assert_allclose(found.numpy(), np.min(every, 0), atol=1e-12)


def test_the_metric_by_hand() -> None:
    """`invest` of ten steps and four places: who invests gets 7; who takes gets 5, and no shift can change that."""
    task = Gym("world/episodic", {"layout": "invest", "places": 4, "horizon": 10})
    for action, nominal, worst in ((1, 7.0, None), (0, 5.0, 5.0)):
        logits = torch.zeros(44, 2)
        logits[:, action] = 99.0
        policy = SimpleNamespace(decide=lambda s, logits=logits: {"logits": logits[s]})
        found = WorstCase(radius=0.2)(context(models={"policy": policy}, task=task))
        assert found["nominal"] == pytest.approx(nominal) and found["worst"] == pytest.approx(worst or found["worst"])
        assert found["worst"] <= found["nominal"] and (worst or found["worst"] < 5.0)
    with pytest.raises(TypeError, match="tells no table"):
        WorstCase()(context(models={}, task=Gym("CartPole-v1")))


def test_its_sides_differ_in_the_radius() -> None:
    wanted = {"radius": 0.2, "temperature": 0.05, "reference": ""}
    holds("theory/dr_rpo", {f"learners.main.{k}": v for k, v in wanted.items()})
    arms = demonstrations.read("theory/dr_rpo").claim.arms
    found: Any = {name: build_stage(arm.stages[-1]).learners["main"] for name, arm in arms.items()}
    assert {name: x.radius for name, x in found.items()} == {"method": 0.2, "baseline": 0.0}

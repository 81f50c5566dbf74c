"""Demonstration-regularised RL: the smoothed clone by hand, and what the stages are made of.

The soft backup with its limits is tested in `tests/learners/test_regularised.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.lab import demonstrations
from shuhari.methods.theory.demonstration_regularised.clone import Clone
from shuhari.models.categorical import CategoricalPolicy
from shuhari.models.tabular import Tabular
from shuhari.tasks.gym import Gym
from shuhari.testing import context

BUFFER: Any = None
TASK = Gym("world/episodic", {"places": 3, "horizon": 2})


def draw(*rows: tuple[int, int, int]) -> Batch:
    """Rows (id, state, action); the last one closes an episode."""
    ids, states, actions = map(torch.tensor, zip(*rows, (99, 0, 0), strict=True))
    mask = torch.ones(len(ids), 1, dtype=torch.bool)
    mask[-1] = False
    return Batch({"id": ids, "context": states, "action": actions, "mask": mask})


def test_the_clone_is_laplace_s_rule_and_counts_a_decision_once() -> None:
    """Three of four decisions at state 0: (3 + 1) / (4 + 2) and (1 + 1) / 6; one at state 1; uniform elsewhere."""
    policy = Tabular()
    policy.build(TASK)
    learner = Clone(BUFFER)
    learner.bind({"policy": policy})
    learner.update(draw((1, 0, 1), (2, 0, 1), (3, 0, 0), (1, 0, 1)), context(models={}))
    last = learner.update(draw((4, 0, 1), (2, 0, 1), (5, 1, 0)), context(models={}))
    p = policy.module.logits.detach().softmax(1)
    torch.testing.assert_close(p[:3], torch.tensor([[1 / 3, 2 / 3], [2 / 3, 1 / 3], [0.5, 0.5]]))
    assert last.info == {"clone/decisions": 5.0}
    other = CategoricalPolicy((4,))
    other.build(TASK)
    with pytest.raises(TypeError, match="clone: the model of 'policy' is CategoricalPolicy: expected a tabular one"):
        learner.bind({"policy": other})


def test_a_large_prior_is_the_uniform_policy() -> None:
    policy = Tabular()
    policy.build(TASK)
    learner = Clone(BUFFER, prior=1e9)
    learner.bind({"policy": policy})
    learner.update(draw((1, 0, 1), (2, 0, 1)), context(models={}))
    torch.testing.assert_close(policy.module.logits.detach().softmax(1), torch.full((9, 2), 0.5))


def test_the_clone_is_the_reference_and_the_explorer_collects() -> None:
    stage = build_stage(load("theory/demonstration_regularised").stages[-1])
    learner: Any = stage.learners["main"]
    assert (learner.reference, learner.explorer, learner.explore) == ("reference", "explorer", "gap")
    assert stage.models["reference"].init == "policy" and stage.models["explorer"].model is not None
    arms = demonstrations.read("theory/demonstration_regularised").claim.arms
    found = {name: build_stage(arm.stages[-1]).models["reference"].init for name, arm in arms.items()}
    assert found == {"method": "policy", "baseline": ""}

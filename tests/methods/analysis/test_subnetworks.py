"""How far weights moved, by hand.

The sides of the demonstration: one start and one optimiser, right words alone for imitation, tested alike.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from shuhari import testing
from shuhari.config.build import build_stage
from shuhari.lab.demonstrations import read
from shuhari.methods.analysis.subnetworks.weight_changes import Weights
from spoken import said


def context(**tensors: list[float]) -> Any:
    """role -> a model of one parameter."""

    def model(values: list[float]) -> Any:
        module = nn.Module()
        module.x = nn.Parameter(torch.tensor(values))
        return SimpleNamespace(module=module)

    return testing.context(models={role: model(values) for role, values in tensors.items()})


def test_share_and_distance_by_hand() -> None:
    """Of four numbers two moved, by 3 and 4; the second rounding hides: 1 + 2^-9 is 1 in bfloat16 (8 bits)."""
    found = Weights()(context(policy=[3.0, 4.0, 1 + 2**-9, 2.0], start=[0.0, 0.0, 1.0, 2.0]))
    assert found["changed"] == 0.75 and found["changed_bf16"] == 0.5
    assert found["distance"] == pytest.approx(math.sqrt(25 + 2**-18)) and found["distance_bf16"] == 5.0
    assert found["relative_bf16"] == pytest.approx(5 / math.sqrt(5))
    assert set(found) == {f"{n}{end}" for n in ("changed", "distance", "relative") for end in ("", "_bf16")}


def test_a_tolerance_hides_small_changes() -> None:
    ctx = context(policy=[1.0, 1.5], start=[1.0, 1.0])
    assert Weights(tolerance=0.5)(ctx)["changed"] == 0.0 and Weights(tolerance=0.4)(ctx)["changed"] == 0.5
    with pytest.raises(ValueError, match="tolerance is -1: expected a number of 0 or more"):
        Weights(tolerance=-1)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"role 'start' has no parameter x of shape \(1,\): \(2,\)"):
        Weights()(context(policy=[1.0], start=[1.0, 2.0]))
    assert math.isnan(Weights()(context(policy=[1.0], start=[0.0]))["relative"])


def test_imitation_sees_right_words_alone_and_all_else_is_alike() -> None:
    claim = read("analysis/subnetworks").claim
    method, baseline = (build_stage(claim.arms[arm].stages[-1]) for arm in ("method", "baseline"))
    train = baseline.task.problems("train")
    shown = [train[i] for i in range(400)]
    assert all(baseline.task.grade(p, said(str(p.solution))) == {"score": 1.0} for p in shown)
    assert {len({p.solution for p in shown if p.prompt == prompt}) for prompt in {p.prompt for p in shown}} == {4}
    parts = [stage.learners["main"].parts["policy"] for stage in (method, baseline)]
    assert list(parts[0].terms) == ["loss"] and list(parts[1].terms) == ["nll"]
    assert parts[0].optimiser == parts[1].optimiser
    assert len({id(recipe) for recipe in claim.warm.values()}) == 1  # one start for both


def test_what_is_tested_are_the_words_of_the_bed() -> None:
    stage = build_stage(read("analysis/subnetworks").claim.arms["method"].stages[-1])
    assert stage.evaluate is not None and stage.evaluate.task is not None
    ours, theirs = (task.problems("test") for task in (stage.evaluate.task, stage.task))
    assert ours.size() == theirs.size() == 16
    for i in range(16):
        assert stage.evaluate.task.answers(ours[i]) == stage.task.answers(theirs[i])

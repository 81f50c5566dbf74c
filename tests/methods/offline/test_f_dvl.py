"""f-DVL as its recipe says it: implicit Q-learning with another loss of the value, and a Huber loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from built import POLICY, built, holds
from shuhari.config.build import build_stage
from shuhari.lab.demonstrations import read
from shuhari.objectives.dual_value import DualValue
from shuhari.objectives.expectile import ValueTD
from shuhari.objectives.likelihood import Nll


def test_numbers_of_the_paper() -> None:
    """The policy imitates by weights that the value's loss has stamped, of a stream of their own."""
    value, critic = "learners.main.parts.value.terms", "learners.main.parts.critic.terms"
    stage = holds(
        "offline/f_dvl",
        {
            f"{value}.dual_value.objective": DualValue(form="total_variation", tau=0.8, temperature=0.1, most=100.0),
            f"{critic}.value_td.objective": ValueTD(huber=20.0, bound=100.0),
            f"{POLICY}.terms.nll.objective": Nll(),
            f"{POLICY}.terms.nll.stream": "awr",
            "learners.main.buffer.size": 256,
            "learners.main.buffer.data.episodes": 200,
            "learners.main.buffer.data.epsilon": 0.8,
        },
    )
    parts = stage.learners["main"].parts  # type: ignore[attr-defined]
    assert {name: list(part.terms) for name, part in parts.items()} == {
        "value": ["dual_value"], "policy": ["nll"], "critic": ["value_td"],
    }  # fmt: skip


def test_a_quarter_of_the_recorded_values_lie_above_the_value() -> None:
    """(1 - tau) / tau = 1/4: of the values 0, 1, .., 7 the loss of V is flat from 5 to 6, and rises on both sides."""
    learner: Any = built("offline/f_dvl").learners["main"]
    objective = learner.parts["value"].terms["dual_value"].objective
    below, first, last, above = (float(objective.loss(torch.arange(8.0) - v).mean()) for v in (4.5, 5.25, 5.75, 6.5))
    assert first == pytest.approx(last) and below > first + 0.01 and above > last + 0.01


def test_its_baseline_is_xql() -> None:
    arms: Any = read("offline/f_dvl").claim.arms
    part: Any = build_stage(arms["baseline"].stages[-1]).learners["main"]
    objective = part.parts["value"].terms["dual_value"].objective
    assert (objective.form, objective.tau) == ("reverse_kl", 1.0)

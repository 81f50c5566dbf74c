"""RLGF as its recipe says it: a guide that imitates, and answers that begin with it in training alone."""

from __future__ import annotations

from typing import Any

from built import SCALED, built, holds, one_loss
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.lab import demonstrations
from shuhari.objectives.likelihood import Nll
from shuhari.rollouts.single import Single


def test_what_it_sets() -> None:
    """Rows are the policy's own part alone, under the loss of the base, whatever share of the answers is led."""
    wanted = {"rollout.share": 0.2, "rollout.guide": "guide", "rollout.of": Single(), "collect": SCALED}
    stage = holds("data/rlgf", wanted, usual=True)
    one_loss(stage)
    assert "guide" in stage.models and list(stage.learners["main"].parts) == ["policy"]  # type: ignore[attr-defined]


def test_evaluation_is_without_the_guide() -> None:
    assert isinstance(built("data/rlgf").evaluation_rollout, Single)


def test_the_guide_is_taught_by_solutions_before() -> None:
    *_, teach, _ = load("data/rlgf").stages
    stage: Any = build_stage(teach)
    assert teach["name"] == "teach" and stage.budget == {"steps": 300}
    assert list(stage.learners["main"].parts) == ["guide"] and stage.learners["main"].buffer.role == "guide"
    part = stage.learners["main"].parts["guide"]
    (term,) = part.terms.values()
    assert part.trains == ("guide",) and (term.objective, term.stream) == (Nll(role="guide"), "ce")


def test_its_baseline_is_never_led() -> None:
    arms = demonstrations.read("data/rlgf").claim.arms
    found: Any = {name: build_stage(arm.stages[-1]).rollout for name, arm in arms.items()}
    assert {name: rollout.share for name, rollout in found.items()} == {"method": 0.2, "baseline": 0.0}

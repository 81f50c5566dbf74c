"""GHPO as its recipe says it: hints where a group is all wrong."""

from __future__ import annotations

from built import SCALED, built, holds, one_loss
from shuhari.rollouts.rounds import HintLadder
from shuhari.rollouts.single import Single


def test_numbers_of_the_paper() -> None:
    """Only groups all wrong by accuracy are asked again."""
    stage = holds(
        "curriculum/ghpo",
        {
            "rollout": HintLadder((0.0, 0.25, 0.5, 0.75), "score"),
            "n": 8,
            "collect": SCALED,
        },
    )
    one_loss(stage)


def test_help_is_for_training_alone() -> None:
    stage = built("curriculum/ghpo")
    assert isinstance(stage.rollout, HintLadder)
    assert isinstance(stage.evaluation_rollout, Single)
    assert set(stage.task.rates) == {1}  # the work that hints show is right

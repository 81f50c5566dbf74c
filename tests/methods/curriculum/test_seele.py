"""SEELE as its recipe says it: hints of a length that a curve of success chooses."""

from __future__ import annotations

from built import SCALED, built, holds, one_loss
from shuhari.rollouts.rounds import HintCurve
from shuhari.rollouts.single import Single


def test_numbers_of_the_paper() -> None:
    stage = holds(
        "curriculum/seele",
        {
            "rollout": HintCurve(rounds=4, target=0.5, first=0.5),
            "n": 16,
            "collect": SCALED,
        },
    )
    one_loss(stage)


def test_help_is_for_training_alone() -> None:
    stage = built("curriculum/seele")
    assert isinstance(stage.rollout, HintCurve)
    assert isinstance(stage.evaluation_rollout, Single)
    assert set(stage.task.rates) == {1}  # the work that hints show is right

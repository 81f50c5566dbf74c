"""CURE as its recipe says it: answers are regrown in the first half of a stage, then it is plain DAPO."""

from __future__ import annotations

import pytest

from built import CLIP, SCALED, built, demonstrated, holds, one_loss
from shuhari.kernel.ramp import Count
from shuhari.objectives.clip import Clip
from shuhari.rollouts.single import Single


def test_numbers_of_the_paper() -> None:
    wanted = {
        "rollout.top": 20,
        "rollout.of": Single(),
        f"{CLIP}.objective": Clip(low=0.2, high=0.28),
        f"{CLIP}.reduce": "decision",
        "collect": SCALED,
    }
    one_loss(holds("rlvr/cure", wanted, usual=True))


@pytest.mark.parametrize("usual", [True, False])
def test_three_continuations_until_half_of_the_stage_and_none_then(usual: bool) -> None:
    """Of the 80 steps shown 40 are with it, 40 without. Of 8 samples two are plain, and each of these is cut."""
    stage = built("rlvr/cure") if usual else demonstrated("rlvr/cure")
    regrow = [stage.rollout.regrow(Count(t, t, 80, in_steps=True)) for t in range(80)]  # type: ignore[union-attr]
    assert regrow[:40] == [3.0] * 40 and set(regrow[41:]) == {0.0}
    assert usual or (stage.n, stage.n - 3 * (stage.n // (1 + 3))) == (8, 2)

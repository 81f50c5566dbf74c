"""SIRI as its recipe says it: the limit of an answer swings between all and half of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from built import SCALED, built, demonstrated, holds, one_loss


def test_numbers_of_the_paper() -> None:
    """And what is cut is learnt from: nothing drops it."""
    wanted = {"curriculum.share": 0.5, "curriculum.period": 20, "curriculum.shape": "cosine", "collect": SCALED}
    one_loss(holds("curriculum/siri", wanted, usual=True))


@pytest.mark.parametrize(("t", "part"), [(0, 1.0), (5, 0.75), (10, 0.5), (15, 0.75), (20, 1.0), (60, 1.0)])
def test_the_limit_at_a_step(t: int, part: float) -> None:
    """s + (1 - s) (1 + cos(2 pi t / 20)) / 2, s = 1/2: three turns in the demonstration's 60 steps."""
    stage: Any = demonstrated("curriculum/siri")
    assert stage.budget == {"steps": 60} and stage.curriculum.part(0.5, t) == pytest.approx(part)


def test_without_a_period_the_limit_is_the_smaller_one_throughout() -> None:
    curriculum: Any = replace(built("curriculum/siri").curriculum, period=0)  # type: ignore[type-var]
    assert {curriculum.part(curriculum.share, t) for t in range(60)} == {0.5}

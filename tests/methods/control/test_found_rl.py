"""Found-RL by a margin of values: what its recipe sets, and that it is SAC if no advice arrives."""

from __future__ import annotations

import pytest

from advised import is_sac_without_advice
from built import holds
from shuhari.kernel.ramp import Count
from shuhari.objectives.advice import AdviceMargin

ADVICE = {"collect.advise.delay": 100, "collect.advise.right": 0.8, "weights": {"task": 10.0}}


def test_numbers_of_the_paper() -> None:
    """The weight is 1 for a third of the run, and falls to 0 at its end: half of it after two thirds."""
    term = "learners.main.parts.critic.terms.advice_margin"
    stage = holds("control/found_rl", {f"{term}.objective": AdviceMargin(margin=2.0), **ADVICE})
    weight = stage.learners["main"].parts["critic"].terms["advice_margin"].weight  # type: ignore[attr-defined]
    found = [weight(Count(3, share * 6000, 6000, in_steps=False)) for share in (0.0, 0.333, 2 / 3, 1.0)]
    assert found == pytest.approx([1.0, 1.0, 0.5, 0.0], abs=1e-3)


def test_without_advice_it_is_sac() -> None:
    is_sac_without_advice("control/found_rl")

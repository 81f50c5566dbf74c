"""Found-RL by weighted imitation: what its recipe sets, and that it is SAC if no advice arrives."""

from __future__ import annotations

from advised import is_sac_without_advice
from built import POLICY, holds
from shuhari.objectives.advice import AdviceGain

ADVICE = {"collect.advise.delay": 100, "collect.advise.right": 0.8, "weights": {"task": 10.0}}


def test_numbers_of_the_paper() -> None:
    """Rows weigh at most 20, e times as much for a gain of 2."""
    term = f"{POLICY}.terms.advice_gain"
    wanted = {f"{term}.objective": AdviceGain(scale=2.0, most=20.0), f"{term}.weight": 0.01, **ADVICE}
    stage = holds("control/found_rl_awag", wanted, usual=True)
    assert list(stage.learners["main"].parts["critic"].terms) == ["soft_td"]  # type: ignore[attr-defined]


def test_without_advice_it_is_sac() -> None:
    is_sac_without_advice("control/found_rl_awag")

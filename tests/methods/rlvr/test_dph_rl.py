"""DPH-RL as its recipe says it: what is rehearsed, and by which divergence."""

from __future__ import annotations

from built import built
from shuhari.objectives.clip import Clip
from shuhari.objectives.divergence import Divergence


def test_it_rehearses_one_right_answer_of_eight_by_jensen_shannon() -> None:
    learner = built("rlvr/dph_rl").learners["main"]
    terms, kept = learner.parts["policy"].terms, learner.buffer.buffers["rehearsed"]
    assert (kept.n, kept.keep, kept.stream) == (8, "one", "rehearse")
    assert built("rlvr/dph_rl", usual=True).learners["main"].buffer.buffers["rehearsed"].low == 1.0
    assert terms["rehearse"].objective == Divergence("js", rows="to", to="behaviour")
    assert terms["rehearse"].weight == 0.2 and terms["rehearse"].stream == "rehearse"  # of 0.05 to 0.2
    assert terms["loss"].objective == Clip(low=0.2, high=0.28) and terms["loss"].reduce == "decision"

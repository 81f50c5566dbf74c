"""CISPO as its recipe says it: the weight of a token is bounded, and every token keeps its gradient; by hand."""

from __future__ import annotations

from math import log

import pytest

from built import answers, built, learnt, padded, same, table
from shuhari.config.overlay import RecipeError
from shuhari.config.recipe import load

SAID, SCORE = ["ab", "abcdefgh", "cd", "cdefghab"], [1.0, 1.0, 0.0, 0.0]
A = 0.5 / (3**-0.5 + 1e-4)  # of the right ones: less 1/2, over the unbiased deviation of four


@pytest.mark.parametrize(("ratio", "weight"), [(0.1, 0.1), (1.0, 1.0), (4.9, 4.9), (9.0, 5.0)])
def test_the_weight_is_bounded_from_above_alone(ratio: float, weight: float) -> None:
    """Of 20 tokens, each A / 20 times the weight, whatever the sign of A."""
    stage = built("rlvr/cispo")
    log_prob = padded(*([log(ratio)] * len(text) for text in SAID)).requires_grad_()
    found = learnt(stage, answers(stage, SAID, SCORE), log_prob, policy=table(log_prob=log_prob))[0]
    same(found, [[-sign * A * weight / 20] * len(t) for sign, t in zip((1, 1, -1, -1), SAID, strict=True)])


def test_beside_dapo_the_two_contradict_each_other() -> None:
    with pytest.raises(RecipeError, match=r"rlvr/(cispo|dapo) sets part\.policy\.terms\.loss\."):
        load("baselines/grpo", methods=["rlvr/dapo", "rlvr/cispo"])

"""GSPO as its recipe says it: the ratio of an answer is clipped as a whole; by hand, over its base and over another."""

from __future__ import annotations

import numpy as np
import pytest

from built import answers, built, learnt, padded, table
from shuhari.config.build import build_stage
from shuhari.config.recipe import load

SAID, SCORE = ["ab", "abcdefgh", "cd", "cdefghab"], [1.0, 1.0, 0.0, 0.0]
A = 0.5 / (3**-0.5 + 1e-4)  # of the right ones: less 1/2, over the unbiased deviation of four


def gradients(stage, moved: float = 0.0):
    log_prob = padded(*([moved] * len(text) for text in SAID)).requires_grad_()
    return learnt(stage, answers(stage, SAID, SCORE), log_prob, policy=table(log_prob=log_prob))[0]


@pytest.mark.parametrize(
    ("moved", "held"),
    [(0.0, []), (3e-4 - 1e-6, []), (4e-4 + 1e-6, [0, 1]), (-3e-4 + 1e-6, []), (-4e-4, [2, 3])],
)
def test_an_answer_is_held_as_a_whole(moved: float, held: list[int]) -> None:
    """Bounds of 1 - 3e-4 and 1 + 4e-4, of the geometric mean, so whatever the length."""
    found = gradients(built("rlvr/gspo"), moved)
    for i, (sign, row) in enumerate(zip((1, 1, -1, -1), found, strict=True)):
        expected = 0.0 if i in held else -sign * A / 4 / len(row) * np.exp(moved)
        assert row == pytest.approx([expected] * len(row), rel=1e-5)


def test_over_another_base_only_the_loss_differs() -> None:
    base, over = load("baselines/grpo_chain"), load("baselines/grpo_chain", methods=["rlvr/gspo"])
    a, b = (build_stage(one.stages[-1]) for one in (base, over))
    assert (a.collect, a.sampling, a.n) == (b.collect, b.sampling, b.n)
    [(before, after)] = [
        (p.terms["loss"].objective, b.learners["main"].parts[name].terms["loss"].objective)
        for name, p in a.learners["main"].parts.items()
    ]
    assert (before.level, after.level, after.low, after.high) == ("decision", "sequence", 3e-4, 4e-4)

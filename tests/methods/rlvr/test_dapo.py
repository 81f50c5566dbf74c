"""DAPO as its recipe says it: what is punished, what is left out, and how tokens weigh, by hand."""

from __future__ import annotations

from math import log

import pytest

from built import answers, built, learnt, padded, same, table
from shuhari.config.build import build_stage
from shuhari.config.recipe import load

SAID, SCORE = ["ab", "abcdefgh", "cd", "cdefgh"], [1.0, 1.0, 0.0, 0.0]


def gradients(stage, moved: float = 0.0, score=SCORE):
    log_prob = padded(*([moved] * len(text) for text in SAID)).requires_grad_()
    return learnt(stage, answers(stage, SAID, score), log_prob, policy=table(log_prob=log_prob))[0]


def test_long_answers_lose_and_every_token_weighs_the_same() -> None:
    """The answer of 8 tokens, the limit, loses 1 of its reward: rewards 1, 0, 0, 0, whose deviation is 1/2. Of 18."""
    a = [0.75 / 0.5001, *[-0.25 / 0.5001] * 3]
    same(gradients(built("rlvr/dapo")), [[-x / 18] * len(text) for x, text in zip(a, SAID, strict=True)])


@pytest.mark.parametrize(("ratio", "held"), [(1.27, False), (1.29, True)])
def test_the_upper_bound_is_wider(ratio: float, held: bool) -> None:
    first = gradients(built("rlvr/dapo"), log(ratio))[0]
    assert (first[0] == 0) == held


def test_over_a_base_of_long_answers_the_limit_is_theirs() -> None:
    recipe = load("baselines/grpo", ["rollout.sampling.max_new=64"], methods=["rlvr/dapo"])
    stage = build_stage(recipe.stages[-1])
    assert list(stage.collect) == ["drop_uniform_groups", "overlong", "advantage"]
    assert (stage.collect["overlong"].length, stage.collect["overlong"].cache) == (64, 2)


def test_a_group_that_agrees_is_dropped() -> None:
    """All are right, and differ by the punishment of the long ones alone."""
    same(gradients(built("rlvr/dapo"), score=[1.0] * 4), [[0.0] * len(text) for text in SAID])

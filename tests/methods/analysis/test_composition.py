"""The sides of the demonstration of composition: what each learns from a group by hand, and which levels it samples."""

from __future__ import annotations

from collections import Counter

import pytest

from built import answers, learnt, padded, same, table
from shuhari.config.build import build_stage
from shuhari.lab.demonstrations import read

SAID, RIGHT = ["a", "bcd", "ef"], [1.0, 0.0, 1.0]


def gradient(arm: str) -> list[list[float]]:
    stage = build_stage(read("analysis/composition").claim.arms[arm].stages[-1])
    log_prob = padded([-0.5], [-1.0, -2.0, -3.0], [-0.1, -0.2]).requires_grad_()
    batch = answers(stage, SAID, RIGHT).put({"logp": log_prob.detach()})  # on policy
    (found,) = learnt(stage, batch, log_prob, policy=table(log_prob=log_prob))
    return found


@pytest.mark.parametrize("arm", ["method", "baseline"])
def test_rl_pushes_wrong_answers_down(arm: str) -> None:
    """Rewards 1, 0, 1 less their mean are 1/3, -2/3, 1/3, over a deviation of 3 ** -.5; an answer is a third of the
    loss."""
    good, bad = ((x / (3**-0.5 + 1e-4)) / 3 for x in (1 / 3, -2 / 3))
    same(gradient(arm), [[-good], [-bad / 3] * 3, [-good / 2] * 2])


def test_three_functions_are_tested_and_sampled_by_no_arm() -> None:
    claim = read("analysis/composition").claim
    for arm, level in {"method": 2, "baseline": 1}.items():
        stage = build_stage(claim.arms[arm].stages[-1])
        train = stage.task.problems("train")
        assert {train[i].info["level"] for i in range(200)} == {level}
        assert stage.evaluate is not None and stage.evaluate.task is not None
        tested = stage.evaluate.task.problems("test")
        assert Counter(tested[i].info["level"] for i in range(300)) == {1: 100, 2: 100, 3: 100}
    assert len({id(recipe) for recipe in claim.warm.values()}) == 1  # one start for all

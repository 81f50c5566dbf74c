"""Kimi k1.5 as its recipe says it: the regression of log-ratios on rewards, and the reward of short answers."""

from __future__ import annotations

import numpy as np

from built import OLD, POLICY, answers, built, holds, learnt, one_loss, padded, same, table
from shuhari.objectives.log_ratio import LogRatio
from shuhari.transforms.advantage import Advantage


def test_numbers_of_the_paper() -> None:
    """The log-ratio of a whole answer to the policy that sampled, on rewards less their mean."""
    stage = holds(
        "rlvr/kimi_k15",
        {
            f"{POLICY}.terms.loss.objective": LogRatio("square", 1.0, "none", "old", "row"),
            f"{POLICY}.terms.loss.reduce": "row",
            f"{POLICY}.optimiser.reset.on": "step",
            "collect": {"advantage": Advantage(centre="mean", scale="none")},
            "curriculum.pick": "failed",  # in proportion to 1 - success rate
        },
    )
    one_loss(stage)


def test_it_regresses_what_an_answer_gained_in_all() -> None:
    """The gradient by each token of s^2 / 2 - A s (tau = 1), the mean over answers of 1 and 3 tokens, whose policy has
    moved by s = log 2 and log 3 in all. At s = 0 it is REINFORCE with the mean as baseline."""
    stage = built("rlvr/kimi_k15")
    assert stage.learners["main"].parts["policy"].minibatches > 1  # with one step an iteration s would stay 0
    for moved in ([[0.0], [0.0] * 3], [[np.log(2)], [np.log(3), 0.5, -0.5]]):
        log_prob = padded([-1.0], [-1.0] * 3).requires_grad_()
        batch = answers(stage, ["a", "bcd"], [1, 0])
        policy = table(log_prob=log_prob)
        batch = batch.put({OLD: log_prob.detach() - padded(*moved)})
        (found,) = learnt(stage, batch, log_prob, policy=policy)
        same(found, [[-(a - sum(s)) / 2] * len(s) for a, s in zip((0.5, -0.5), moved, strict=True)])


def test_it_pays_for_short_answers_after_a_warm_up() -> None:
    """With a weight of w the shortest right answer has w / 2, the longest -w / 2, and a wrong one nothing at most."""
    stage = built("rlvr/kimi_k15")
    ramp = stage.rewards["length"].weight
    assert ramp(0) == ramp(1) == 0 and 0 < ramp(1000) < 2  # at 2 a right long answer would be worth a wrong short one
    assert stage.weights == {"score": 1.0, "length": 1.0}
    assert stage.curriculum.reward == stage.curriculum.predictor.reward == "reward/score"  # how often they are failed

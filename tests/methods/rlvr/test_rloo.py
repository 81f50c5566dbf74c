"""RLOO as its recipe says it: the mean of the others is the baseline, a whole answer one action; by hand."""

from __future__ import annotations

from built import answers, built, learnt, padded, same, table
from shuhari.config.build import build_stage
from shuhari.config.recipe import load

SAID, SCORE = ["ab", "abcdefgh", "cd", "cdefghab"], [1.0, 1.0, 0.0, 0.0]


def gradients(stage, reference: float):
    """Where the reference gives each token a log-probability that is lower by so much than the policy's, of 0."""
    log_prob = padded(*([0.0] * len(text) for text in SAID)).requires_grad_()
    other = padded(*([-reference] * len(text) for text in SAID))
    tables = {"policy": table(log_prob=log_prob), "reference": table(log_prob=other)}
    return learnt(stage, answers(stage, SAID, SCORE), log_prob, **tables)[0]


def expect(rewards: list[float]):
    others = [(sum(rewards) - x) / 3 for x in rewards]
    return [[-(x - m) / 4] * len(text) for x, m, text in zip(rewards, others, SAID, strict=True)]


def test_the_baseline_is_the_mean_of_the_others() -> None:
    same(gradients(built("rlvr/rloo"), 0.0), expect(SCORE))


def test_the_divergence_of_a_whole_answer_is_in_its_reward() -> None:
    """0.03 of 0.5 nats a token: answers of 2 tokens lose 0.03, of 8 tokens 0.12."""
    same(gradients(built("rlvr/rloo"), 0.5), expect([0.97, 0.88, -0.03, -0.12]))


def test_over_another_base_there_is_one_step_a_batch_and_a_reference() -> None:
    over = build_stage(load("baselines/grpo_chain", methods=["rlvr/rloo"]).stages[-1])
    [part] = over.learners["main"].parts.values()
    assert part.minibatches == 1 and over.models["reference"].init == "policy"
    assert list(over.collect) == ["kl_in_reward", "advantage"]

"""Dr. GRPO as its recipe says it: gradients by token, worked out by hand, over its base and over another."""

from __future__ import annotations

import pytest

from built import answers, built, learnt, padded, same, table
from shuhari.config.build import build_stage
from shuhari.config.recipe import load, read_method
from shuhari.lab.claims.digest import compute_digest

SAID, SCORE = ["ab", "abcdefgh", "cd", "cdefghab"], [1.0, 1.0, 0.0, 0.0]


def gradients(stage):
    log_prob = padded(*([0.0] * len(text) for text in SAID)).requires_grad_()
    return learnt(stage, answers(stage, SAID, SCORE), log_prob, policy=table(log_prob=log_prob))[0]


def expect(constant: float):
    """Less the mean, 1/2, and over nothing: a token of any answer has the advantage over 4 answers and the constant."""
    return [[-(score - 0.5) / 4 / constant] * len(text) for score, text in zip(SCORE, SAID, strict=True)]


def test_neither_the_deviation_nor_the_length_of_an_answer_counts() -> None:
    same(gradients(built("rlvr/dr_grpo")), expect(8))


def test_the_constant_is_the_longest_answer_of_its_base() -> None:
    recipe = load("baselines/grpo", ["rollout.sampling.max_new=64"], methods=["rlvr/dr_grpo"])
    same(gradients(build_stage(recipe.stages[-1])), expect(64))


@pytest.mark.parametrize("name", ["dr_grpo", "dapo", "gspo", "rloo", "cispo"])
def test_a_method_and_its_baseline_are_one(name: str) -> None:
    """Written once: over the usual base the method is the baseline, and the baseline asked for as a method is it."""
    assert compute_digest(load(f"rlvr/{name}")) == compute_digest(load(f"baselines/{name}"))
    assert read_method(f"baselines/{name}").name == f"rlvr/{name}"
    assert load("baselines/grpo_chain", methods=[f"baselines/{name}"]).tree["laid"].keys() == {f"rlvr/{name}"}

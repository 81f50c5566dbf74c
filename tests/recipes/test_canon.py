"""CANON as its recipe says it: where its schedule stands, and what is left of it at the middle, Dr. GRPO."""

from __future__ import annotations

from dataclasses import replace

import pytest
from built import answers, built, learnt, padded, same, table

from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.transforms.halves import Halves

SAID, SCORE, ENTROPY = ["abcde"] * 4, [1.0, 0.0, 1.0, 1.0], [0.1, 0.2, 0.3, 0.4]


def test_mu_climbs_to_one_and_falls_to_two_fifths() -> None:
    for usual, warm, fall in ((True, 30, 120), (False, 20, 80)):  # of 150 steps, and of the claim's 100
        mu = built("rlvr/canon", usual=usual).collect["halves"].mu
        assert [mu(0), mu(warm / 2 - 1)] == pytest.approx([1 / warm, 0.5])
        assert [mu(warm + x * fall) for x in (0, 0.5, 1)] == pytest.approx([1.0, 0.7, 0.4])


def test_the_gradient_by_hand() -> None:
    """mu = 1: means of halves 1/2 and 1, advantages 0, -1, 1/2, 1/2; over 4 answers and the constant of 5 tokens."""
    stage = built("rlvr/canon")
    stage.collect["halves"] = replace(stage.collect["halves"], mu=1.0)
    batch = answers(stage, SAID, SCORE)
    log_prob = padded(*([0.0] * 5 for _ in SAID)).requires_grad_()
    policy = table(log_prob=log_prob, entropy=padded(*([h] * 5 for h in ENTROPY)))
    (found,) = learnt(stage, batch, log_prob, policy=policy)
    same(found, [[-a / 4 / 5] * 5 for a in (0.0, -1.0, 0.5, 0.5)])


def test_at_one_half_it_is_dr_grpo() -> None:
    ours, base = built("rlvr/canon", usual=True), build_stage(load("baselines/dr_grpo").stages[-1])
    ours.collect["halves"] = replace(ours.collect["halves"], mu=0.5)
    assert list(ours.collect) == ["halves"] and isinstance(ours.collect["halves"], Halves)
    found = []
    for stage in (ours, base):
        log_prob = padded(*([0.0] * 5 for _ in SAID)).requires_grad_()
        policy = table(log_prob=log_prob, entropy=padded(*([h] * 5 for h in ENTROPY)))
        found += learnt(stage, answers(stage, SAID, SCORE), log_prob, policy=policy)
    same(found[0], found[1])
    same(found[1], [[-a / 4 / 8] * 5 for a in (0.25, -0.75, 0.25, 0.25)])

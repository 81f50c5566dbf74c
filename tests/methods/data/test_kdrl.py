"""KDRL as its recipe says it: the gradient at each token of own answers, and of the KL to a teacher in expectation."""

from __future__ import annotations

from dataclasses import replace

import torch

from built import answers, built, learnt, padded, same, table
from shuhari.kernel.ramp import Count
from shuhari.lab.claims.claim import read
from shuhari.objectives.divergence import estimate

SAID = ["a", "bcd"]
LOGP, TEACHER = [[-0.5], [-1.0, -2.0, -3.0]], [[-0.1], [-2.0, -2.0, -1.0]]
FIRST, LAST = 5e-3, 1e-3


def gradient(score, teacher):
    stage = built("data/kdrl", usual=True)
    terms = stage.learners["main"].parts["policy"].terms
    terms["divergence"] = replace(terms["divergence"], weight=FIRST)  # of the first step
    log_prob = padded(*LOGP).requires_grad_()
    batch = answers(stage, SAID, score).put({"logp": log_prob.detach()})  # on policy
    models = {"policy": table(log_prob=log_prob), "teacher": table(log_prob=padded(*teacher))}
    (found,) = learnt(stage, batch, log_prob, **models)
    return found


def test_advantages_and_the_pull_to_the_teacher():
    """Rewards 1, 0 are .5 and -.5 over a deviation of .7071, each answer half of the loss; the pull is the weight times
    log pi - log teacher, the mean over four tokens."""
    a = 0.5 / (0.5**0.5 + 1e-4)
    pull = [[FIRST * (p - t) / 4 for p, t in zip(*row, strict=True)] for row in zip(LOGP, TEACHER, strict=True)]
    own = [[-a / 2], [a / 2 / 3] * 3]
    both = [[x + y for x, y in zip(*row, strict=True)] for row in zip(own, pull, strict=True)]
    same(gradient([1.0, 0.0], TEACHER), both)
    same(gradient([0.0, 0.0], TEACHER), pull)  # of a group that is all wrong: the teacher alone
    same(gradient([1.0, 0.0], LOGP), own)  # a teacher that says the same: GRPO


def test_the_weight_falls_to_a_fifth():
    weight = built("data/kdrl", usual=True).learners["main"].parts["policy"].terms["divergence"].weight
    assert weight(Count(0, 0, 120, in_steps=True)) == FIRST
    assert abs(weight(Count(120, 120, 120, in_steps=True)) - LAST) < 1e-12


def test_in_expectation_it_is_the_gradient_of_the_reverse_kl():
    """Over three actions, exactly: sum pi grad k2 = grad KL(pi || teacher), which that of k3 is not."""
    logits = torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()

    def grad(loss):
        return torch.autograd.grad(loss, logits)[0]

    log_pi = logits.log_softmax(0)
    exact = grad((log_pi.exp() * (log_pi - teacher)).sum())
    found = {
        form: grad((logits.softmax(0).detach() * estimate(form, logits.log_softmax(0), teacher)).sum())
        for form in ("k2", "k3")
    }
    torch.testing.assert_close(found["k2"], exact, atol=1e-8, rtol=0)
    assert not torch.allclose(found["k3"], exact, atol=1e-2)


def test_the_teacher_is_taught_in_the_warm_start_that_all_arms_share():
    claim = read("data/kdrl")
    (warm,) = {id(recipe): recipe for recipe in claim.warm.values()}.values()
    *_, teach = warm.stages
    assert teach["name"] == "teach" and set(teach["models"]) == {"policy", "teacher"}
    arms = {"method", "method_fast", "baseline", "kd", "kd_first", "kd_first_fast", "kd_fast", "sft"}
    assert set(claim.warm) == set(claim.arms) == arms

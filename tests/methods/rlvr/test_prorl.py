"""ProRL as its recipe says it: DAPO's surrogate with a wider bound, k3 to a reference that is renewed, resets."""

from __future__ import annotations

from math import log, sqrt

import pytest

from built import answers, built, demonstrated, learnt, padded, same, table
from shuhari.events import Evaluated
from shuhari.models.follow import Ema
from shuhari.objectives.divergence import Divergence
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.filters import Mixed


def gradient(ratio, over):
    """Of two answers, right and wrong: by the policy's log-probabilities, `ratio` being those over the sampler's and
    `over` over the reference's."""
    stage, log_prob = built("rlvr/prorl", usual=True), padded(*[[-1.0] * len(r) for r in ratio]).requires_grad_()
    new = log_prob.detach()
    batch = answers(stage, ["a" * len(r) for r in ratio], [1, 0])
    batch = batch.put({"logp": new - padded(*[[log(x) for x in r] for r in ratio])})
    reference = table(log_prob=new - padded(*[[log(x) for x in r] for r in over]))
    return learnt(stage, batch, log_prob, policy=table(log_prob=log_prob), reference=reference)[0]


A = 0.5 / (sqrt(0.5) + 1e-4)  # of rewards 1 and 0: less their mean, over their deviation


def test_right_after_a_reset_there_is_the_surrogate_alone():
    """Bounds 0.8 and 1.4: of a good token 1.3 goes free and 1.5 not, of a bad one 1.5 goes free and 0.75 not; the mean
    over all five tokens."""
    found = gradient([[1.3, 1.5], [1.5, 0.75, 0.85]], [[1.0] * 2, [1.0] * 3])
    same(found, [[-1.3 * A / 5, 0.0], [1.5 * A / 5, 0.0, 0.85 * A / 5]])


def test_the_kl_term_is_k3():
    """exp(-d) - 1 + d has the gradient 1 - exp(-d): 1/2 at twice the reference's probability, -1 at half of it."""
    weight = built("rlvr/prorl", usual=True).learners["main"].parts["policy"].terms["divergence"].weight
    assert weight > 0  # scaled: the paper's 1e-4 is over thousands of steps
    over = [[2.0, 1.0], [0.5, 1.0, 1.0]]
    found = gradient([[1.0] * 2, [1.0] * 3], over)
    same(found, [[(-A + weight / 2) / 5, -A / 5], [(A - weight) / 5, A / 5, A / 5]])


def test_the_papers_numbers():
    stage, claimed = built("rlvr/prorl", usual=True), demonstrated("rlvr/prorl")
    part = stage.learners["main"].parts["policy"]
    assert (claimed.n, stage.sampling.temperature) == (16, 1.2)
    assert list(stage.collect.values()) == [Mixed(), Advantage()]
    assert list(part.terms) == ["loss", "divergence"] and part.terms["divergence"].objective == Divergence(form="k3")
    assert isinstance(part.optimiser.lr, float)  # constant: there is no end to decay towards


def test_reference_and_optimiser_are_renewed_at_once_where_the_score_stalls():
    """Scores that never beat their first: both rules wait as long, and go off at the same evaluation."""
    stage = demonstrated("rlvr/prorl")
    follow, reset = stage.follows["reference"], stage.learners["main"].parts["policy"].optimiser.reset
    assert isinstance(follow, Ema) and follow.rate == 1 and follow.of == "policy"
    assert stage.models["reference"].init == "policy"
    assert stage.evaluate.every > 0 and "exact" in stage.evaluate.metrics
    scores = [Evaluated("test", {"exact.mean": x}) for x in (0.1, 0.2, 0.2, 0.1, 0.2, 0.3)]
    due = [(follow.due(e), reset.due(e)) for e in scores]
    assert due == [(False, False)] * 4 + [(True, True), (False, False)]  # three without a new best


@pytest.mark.parametrize("score", [0, 1])
def test_a_group_without_contrast_teaches_nothing(score):
    stage, log_prob = built("rlvr/prorl", usual=True), padded([-1.0], [-1.0]).requires_grad_()
    models = {role: table(log_prob=log_prob if role == "policy" else 2 * log_prob.detach()) for role in stage.models}
    (found,) = learnt(stage, answers(stage, ["a", "b"], [score, score]), log_prob, **models)
    assert found == [[0.0], [0.0]]  # neither by the surrogate nor by the KL

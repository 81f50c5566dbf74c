"""APO as its recipe says it: the gradient of the surrogate and of the KL term together, token by token, by hand."""

from __future__ import annotations

from math import e, exp, log

from built import answers, built, learnt, padded, same, table

SAID, SCORE = ["ab", "c", "defg", "h"], [1.0, 0.0, 0.0, 0.0]
SCALE = 1 / (0.5 + 1e-4)  # the unbiased deviation of 1, 0, 0, 0 is 1/2


def test_gradients_by_hand() -> None:
    """One of four is right, with two tokens; of the wrong ones that with four is longer, by two. k3 to a reference that
    says of each token half of what the policy does has the gradient 1 - 1/2."""
    stage = built("rlvr/apo")
    assert stage.collect["asymmetric"].base == 1.0357 and stage.models["reference"].init == "policy"
    log_prob = padded(*([0.0] * len(t) for t in SAID)).requires_grad_()
    reference = padded(*([-log(2)] * len(t) for t in SAID))
    batch = answers(stage, SAID, SCORE)
    (found,) = learnt(stage, batch, log_prob, policy=table(log_prob=log_prob), reference=table(log_prob=reference))
    advantages = [0.75 * SCALE, -0.25 * SCALE, -0.25 * SCALE * (2 - 1.0357**-2), -0.25 * SCALE]
    kappas = [1 - exp(-e / 4), 1.0, 1.0, 1.0]
    expected = [
        [(-a + 1e-3 * k * 0.5) / len(t) / 4] * len(t) for a, k, t in zip(advantages, kappas, SAID, strict=True)
    ]
    same(found, expected)


def test_the_paper_s_base_is_the_usual_one() -> None:
    stage = built("rlvr/apo", usual=True)
    term = stage.learners["main"].parts["policy"].terms["divergence"]
    assert stage.collect["asymmetric"].base == 1.00001
    assert (term.weight, term.stream, term.reduce) == (1e-3, "kl", "row")
    assert list(stage.collect)[-2:] == ["advantage", "asymmetric"]  # what it reads stands before it

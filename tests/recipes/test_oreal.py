"""OREAL as its recipe says it: what is imitated, what is unlearnt and what holds it, on the pair of one group."""

from __future__ import annotations

from math import log

import pytest
from built import answers, built, learnt, padded, same, table

from shuhari.objectives.divergence import Divergence


@pytest.mark.parametrize("right", ["a", "abcd"])
def test_the_three_terms_on_a_pair(right: str) -> None:
    """- A w+ / tokens of the right answer, + eta |A| w- / tokens of the wrong one, + beta log(pi / reference) / tokens
    of both: eta = 1/2, beta = 0.01, and of one right answer in four A is 1 and -1/3, before one of three is chosen.

    sigmoid(log 3) = 3/4, so w+ is 1/2 where the credit model says log 3, and w- where it says -log 3; else both are 0.
    The claim divides them by their mean on either side: 1 everywhere, and 3, 0, 0.
    """
    stage, n = built("rlvr/oreal"), len(right)
    wrong = [-log(3), log(3), 0.0]
    ratio = [[log(2)] * n, *[[-log(2), 0.0, log(3)]] * 3]  # of policy over reference
    log_prob = padded([-1.0] * n, *[[-1.0] * 3] * 3).requires_grad_()
    models = {
        "policy": table(log_prob=log_prob),
        "reference": table(log_prob=log_prob.detach() - padded(*ratio)),
        "credit": table(value=padded([log(3)] * n, wrong, wrong, wrong)),
    }
    batch = answers(stage, [right, "xyz", "xyz", "xyz"], [1, 0, 0, 0])
    (found,) = learnt(stage, batch, log_prob, **models)
    chosen = [row for row in found[1:] if any(row)]
    hold = [[0.01 * x / (n + 3) for x in row] for row in ratio]
    same([found[0]], [[-1 / n + x for x in hold[0]]])
    unlearnt = [1 / 2 * 1 / 3 * w / 3 for w in (3.0, 0.0, 0.0)]
    same(chosen, [[u + x for u, x in zip(unlearnt, hold[1], strict=True)]])


def test_where_all_are_right_nothing_is_learnt() -> None:
    stage = built("rlvr/oreal")
    log_prob = padded([-1.0], [-1.0, -1.0]).requires_grad_()
    models = {name: table(log_prob=log_prob, value=log_prob.detach()) for name in ("policy", "credit")}
    reference = table(log_prob=2 * log_prob.detach())
    (found,) = learnt(stage, answers(stage, ["a", "bc"], [1, 1]), log_prob, reference=reference, **models)
    assert found == [[0.0], [0.0, 0.0]]


def test_the_papers_numbers() -> None:
    stage = built("rlvr/oreal")
    part = stage.learners["main"].parts["policy"]
    assert stage.n == 16 and part.after == 10 and set(part.terms) == {"pos", "neg", "divergence"}
    assert part.terms["divergence"].objective == Divergence(form="k1")  # the gradient of KL(policy || reference)
    assert stage.models["reference"].init == "policy" and not stage.follows

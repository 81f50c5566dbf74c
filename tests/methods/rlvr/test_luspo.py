"""LUSPO as its recipe says it: gradients by token, worked out by hand, beside those of GSPO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from built import answers, built, demonstrated, learnt, padded, same, table
from shuhari.config.build import build_stage
from shuhari.config.recipe import load

SAID, SCORE = ["ab", "abcdefgh", "cd", "cdefghab"], [1.0, 1.0, 0.0, 0.0]
A = 0.5 / (3**-0.5 + 1e-4)  # of the right ones: less 1/2, over the unbiased deviation of four
SIGNS = [A, A, -A, -A]


def gradients(stage: Any, moved: Sequence[float] = (0.0,) * 4) -> Any:
    """By each token's log-probability, where each token of an answer has moved by so much since it was sampled."""
    batch = answers(stage, SAID, SCORE)
    log_prob = padded(*([m] * len(text) for m, text in zip(moved, SAID, strict=True))).requires_grad_()
    assert not batch["logp"][batch["mask"]].any()
    return learnt(stage, batch, log_prob, policy=table(log_prob=log_prob))[0]


def test_every_token_weighs_the_same_whatever_the_length() -> None:
    """Of four answers of 2 and 8 tokens: A / 4 a token, where GSPO has A / 8 and A / 32."""
    same(gradients(built("rlvr/luspo", usual=True)), [[-a / 4] * len(t) for a, t in zip(SIGNS, SAID, strict=True)])
    gspo = gradients(build_stage(load("baselines/gspo").stages[-1]))
    same(gspo, [[-a / 4 / len(t)] * len(t) for a, t in zip(SIGNS, SAID, strict=True)])


def test_in_the_demonstration_an_answer_of_its_mean_length_weighs_as_in_gspo() -> None:
    same(gradients(demonstrated("rlvr/luspo")), [[-a / 4 / 23] * len(t) for a, t in zip(SIGNS, SAID, strict=True)])


def test_with_one_update_a_batch_gspo_is_the_bed() -> None:
    """Where no ratio has moved, the whole answer's and the token's give one gradient."""
    bed, gspo = built("beds/work/padded"), demonstrated("rlvr/luspo")
    (term,), (own,) = (s.learners["main"].parts["policy"].terms.values() for s in (bed, gspo))
    assert bed.learners["main"].parts["policy"].minibatches == gspo.learners["main"].parts["policy"].minibatches == 1
    assert (term.reduce, own.reduce) == ("row", "constant:23")
    ours = [[23 / len(row) * x for x in row] for row in gradients(gspo)]
    same(gradients(bed), ours)


@pytest.mark.parametrize(
    ("moved", "held"),
    [(2.4e-3, []), (2.6e-3, [0, 1]), (-1.9e-3, []), (-2.1e-3, [2, 3])],  # the right ones above, the wrong ones below
)
def test_what_is_held_is_held_as_a_whole(moved: float, held: list[int]) -> None:
    """Bounds of 1 - 0.002 and 1 + 0.0025, of the geometric mean, so whatever the length; else the ratio is a factor."""
    found = gradients(built("rlvr/luspo", usual=True), [moved] * 4)
    for i, (a, row) in enumerate(zip(SIGNS, found, strict=True)):
        expected = 0.0 if i in held else -a / 4 * np.exp(moved)
        assert row == pytest.approx([expected] * len(row), rel=1e-5)

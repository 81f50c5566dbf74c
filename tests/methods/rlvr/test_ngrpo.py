"""NGRPO as its recipe says it: advantages of groups with a virtual right answer, by hand, and its bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from built import answers, built, credited, table
from shuhari.objectives.clip import Clip


def advantages(score: list[float]) -> list[float]:
    stage = built("rlvr/ngrpo")
    silent = table(log_prob=answers(stage, "a" * len(score), score)["logp"])
    batch, _ = credited(stage, answers(stage, "a" * len(score), score), policy=silent)
    return batch["advantage"][:, 0].tolist()


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ([0.0] * 8, [-1 / 3] * 8),  # mean 1/9, and an unbiased deviation of 1/3 over nine
        ([1.0] + [0.0] * 7, [1.7638] + [-0.5040] * 7),  # 2/9 and the root of 7/36
        ([1.0] * 8, [0.0] * 8),
    ],
)
def test_the_virtual_answer_counts_and_is_not_learnt_from(score: list[float], expected: list[float]) -> None:
    assert advantages(score) == pytest.approx(expected, abs=1e-4)


def test_without_it_and_with_equal_bounds_it_is_the_bed() -> None:
    ours, bed = built("rlvr/ngrpo"), built("beds/trie/twins4")
    (term,), (base,) = (s.learners["main"].parts["policy"].terms.values() for s in (ours, bed))
    assert term.objective == Clip(low=0.16, high=0.24)
    assert replace(term, objective=base.objective) == base
    advantage, other = ours.collect["advantage"], bed.collect["advantage"]
    assert replace(advantage, virtual=0, eps=other.eps) == other and advantage.eps == 1e-6
    part, other = (s.learners["main"].parts["policy"] for s in (ours, bed))
    assert (part.minibatches, part.unit, ours.n) == (other.minibatches, other.unit, bed.n) == (4, "group", 8)

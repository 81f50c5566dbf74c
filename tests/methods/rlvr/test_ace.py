"""Errors by confidence: the factors by hand, what stays as it is, and the control of the same size."""

from __future__ import annotations

from math import exp, inf, log, nan
from typing import Any

import pytest
import torch

from built import built
from shuhari.methods.rlvr.ace.confident_errors import Modulate
from shuhari.testing import check_transform, context, groups


def modulated(
    made: Modulate, advantage: list[float], said: list[float], reference: list[float], **columns: Any
) -> list[list[float]]:
    """The advantages of answers of two tokens, each of which has the given log-probabilities."""
    batch = groups([[0.0] * len(advantage)], lengths=2)
    two = {"advantage": advantage, "logp": said, made.needs[0].key: reference}
    batch = batch.put({k: torch.tensor(v)[:, None].expand(-1, 2).clone() for k, v in two.items()} | columns)
    return check_transform(made, batch, context())["advantage"].tolist()  # type: ignore[no-any-return]


def test_where_nothing_has_moved_every_error_weighs_one_and_log_two_more() -> None:
    found = modulated(Modulate(), [1.0, -1.0, -0.5], [-1.0, -1.0, -2.0], [-1.0, -1.0, -2.0])
    assert found == [pytest.approx([x, x]) for x in (1.0, -1 - log(2), -0.5 - 0.5 * log(2))]
    assert modulated(Modulate(shape="relu"), [1.0, -1.0], [-1.0] * 2, [-1.0] * 2) == [[1.0] * 2, [-1.0] * 2]


def test_the_surer_the_more() -> None:
    """c = 2 (log 3) over two tokens: softplus is log(1 + 9), relu log 9; a mean over tokens is log 3."""
    up, down = [log(3) - 5], [-log(3) - 5]
    for made, factor in [
        (Modulate(), 1 + log(10)),
        (Modulate(shape="relu"), 1 + log(9)),
        (Modulate(level="sequence"), 1 + log(4)),
        (Modulate(alpha=0.5), 1 + log(10) / 2),
        (Modulate(most=2.0), 2.0),
        (Modulate(alpha=9.0), 5.0),
        (Modulate(alpha=9.0, most=inf), 1 + 9 * log(10)),
        (Modulate(alpha=0.0), 1.0),
    ]:
        assert modulated(made, [-2.0], up, [-5.0])[0] == pytest.approx([-2 * factor] * 2, rel=1e-5)
    assert modulated(Modulate(), [-1.0], down, [-5.0])[0] == pytest.approx([-1 - log(1 + 1 / 9)] * 2, rel=1e-5)
    assert modulated(Modulate(), [-1.0], [-40.0], [-5.0])[0] == [-1.0, -1.0]  # exp(-70) is nothing beside 1


def test_what_is_right_keeps_its_bits_and_what_is_not_known_adds_nothing() -> None:
    right = [0.1, 0.7, 0.0]
    assert modulated(Modulate(), right, [-1.0, -0.1, -3.0], [-9.0] * 3) == torch.tensor([right] * 2).T.tolist()
    assert modulated(Modulate(), [-1.0], [nan], [-3.0])[0] == pytest.approx([-1 - log(2)] * 2)


def test_a_control_of_the_same_size() -> None:
    """The same sum over errors of one advantage, the same factor for each; rows of weight 0 do not count."""
    a, said, reference = [-1.0, -1.0, 2.0, -1.0], [-1.0, -3.0, -1.0, -0.2], [-2.0] * 4
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0])[:, None].expand(-1, 2).clone()
    each = modulated(Modulate(), a, said, reference, **{"weight/rl": weight})
    evenly = modulated(Modulate(evenly=True), a, said, reference, **{"weight/rl": weight})
    mean = 1 + (log(1 + exp(2)) + log(1 + exp(-2))) / 2
    assert evenly[0] == pytest.approx([-mean] * 2) and evenly[1] == evenly[3] == evenly[0] and evenly[2] == [2.0] * 2
    assert sum(each[0] + each[1]) == pytest.approx(sum(evenly[0] + evenly[1]))
    assert modulated(Modulate(evenly=True), [1.0], [-1.0], [-1.0]) == [[1.0, 1.0]]


def test_it_is_grpo_but_for_its_factor() -> None:
    stage, bed = built("rlvr/ace"), built("beds/trie/twins")
    assert stage.learners["main"].transforms == {"confident_errors": Modulate(alpha=1.0, shape="softplus", level="row")}
    assert stage.collect == bed.collect
    assert stage.learners["main"].parts["policy"].terms == bed.learners["main"].parts["policy"].terms

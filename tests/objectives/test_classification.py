"""The cross-entropy of labels under a value head, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from shuhari.objectives.classification import Classification
from shuhari.testing import check_objective, context, groups

NAN = math.nan
NEED = Classification().needs[0]


def make(value: Any, label: Any) -> Any:
    batch = groups([[0.0] * len(value)], lengths=len(value[0]))
    return batch.put({NEED.key: torch.tensor(value), "label": torch.tensor(label)})


def test_loss_and_infos_by_hand() -> None:
    """sigmoid(log 3) is 3/4."""
    batch = make([[math.log(3), 9.0], [-math.log(3), 0.0]], [[1.0, NAN], [0.25, 0.0]])
    loss, info = check_objective(Classification(), batch, context())
    soft = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert torch.allclose(loss, torch.tensor([[-math.log(0.75), 0.0], [soft, math.log(2)]]))
    assert info["accuracy"].tolist() == [1, 1, 1] and info["positives"].tolist() == [1, 0.25, 0]
    assert info["predicted"].tolist() == pytest.approx([0.75, 0.25, 0.5])
    assert info["brier"].tolist() == pytest.approx([1 / 16, 0, 1 / 4])


def test_the_gradient_is_the_probability_less_the_label() -> None:
    batch = make([[math.log(3), 5.0]], [[0.5, NAN]])
    value = batch[NEED].clone().requires_grad_()
    Classification()(batch.put({NEED.key: value}), context())[0].sum().backward()
    assert value.grad is not None and value.grad.tolist() == [[pytest.approx(0.25), 0.0]]


def test_a_wrong_side_is_no_accuracy() -> None:
    _, info = Classification()(make([[1.0, -1.0, 0.0]], [[0.0, 1.0, 0.0]]), context())
    assert info["accuracy"].tolist() == [0, 0, 1]


def test_what_it_cannot_use_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the label 1.5: expected a number in \[0, 1\]"):
        Classification()(make([[0.0]], [[1.5]]), context())
    with pytest.raises(ValueError, match="2 values: expected a head with one output"):
        Classification()(make([[[0.0, 1.0]]], [[1.0]]), context())

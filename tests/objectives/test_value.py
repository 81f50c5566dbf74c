"""Value regression by hand, with and without PPO's clipping."""


import pytest
import torch

from shuhari.batch import Batch
from shuhari.needs import Need
from shuhari.objectives.value import Value
from shuhari.testing import context

CTX = context()
LIVE, OLD = Need(("critic",), "value", live=True), Need(("critic",), "value")


def batch(value, target, old=0.0):
    value = value if isinstance(value, torch.Tensor) else torch.tensor([[value]])
    columns = {
        "mask": torch.ones(value.shape[:2], dtype=torch.bool),
        LIVE.key: value,
        "return": torch.tensor([[target]]),
    }
    return Batch({**columns, OLD.key: torch.full_like(value, old)})


def test_half_the_squared_error():
    v = torch.tensor([[3.0]], requires_grad=True)
    loss, info = Value()(batch(v, 1.0), CTX)
    assert float(loss.detach()) == 2.0 and float(torch.autograd.grad(loss.sum(), v)[0]) == 2.0
    assert float(info["value"]) == 3.0 and Value().needs == (LIVE,)


@pytest.mark.parametrize(
    ("value", "target", "loss", "gradient"),
    [
        (0.1, 1.0, 0.5 * 0.81, -0.9),  # within the clip range
        (0.6, 1.0, 0.5 * 0.64, 0.0),  # moved beyond it towards the target: the held value's loss, no gradient
        (-0.6, 1.0, 0.5 * 2.56, -1.6),  # moved beyond it away from the target: the plain loss pulls it back
    ],
)
def test_clipped_values(value, target, loss, gradient):
    v = torch.tensor([[value]], requires_grad=True)
    got, _ = Value(clip=0.2)(batch(v, target), CTX)
    assert float(got.detach()) == pytest.approx(loss) and float(torch.autograd.grad(got.sum(), v)[0]) == pytest.approx(
        gradient
    )
    assert Value(clip=0.2).needs == (LIVE, OLD)


def test_an_ensemble_is_averaged_over_its_members():
    pair = torch.tensor([[[3.0, 0.0]]], requires_grad=True)
    loss, info = Value()(batch(pair, 1.0), CTX)
    assert loss.tolist() == [[(2.0 + 0.5) / 2]] and info["value"].tolist() == [[1.5]]
    assert torch.autograd.grad(loss.sum(), pair)[0].tolist() == [[[1.0, -0.5]]]
    held, _ = Value(clip=0.5)(batch(pair, 1.0), CTX)
    assert held.tolist() == [[(2.0 + 0.5) / 2]]

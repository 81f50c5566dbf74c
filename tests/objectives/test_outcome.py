"""Cross-entropy of the mean over a row, by hand."""


import torch

from shuhari.batch import Batch
from shuhari.needs import Need
from shuhari.objectives.outcome import Outcome
from shuhari.testing import context

CTX = context()


def test_outcomes_of_the_mean_over_a_row():
    """Torch's own cross-entropy of the mean over the decisions, with a row that ends early."""
    need = Need(("credit",), "value", live=True)
    w = torch.tensor([[1.0, -3.0, 5.0], [2.0, 1.0, 0.0]], requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    reward = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    loss, info = Outcome()(Batch({"mask": mask, need.key: w, "reward": reward}), CTX)
    p = torch.stack([w[0].mean(), w[1, :2].mean()]).sigmoid()
    want = -torch.stack([(1 - p[0]).log(), p[1].log()])
    torch.testing.assert_close(loss, want)
    grads = torch.autograd.grad(loss.sum(), w, retain_graph=True)[0], torch.autograd.grad(want.sum(), w)[0]
    torch.testing.assert_close(*grads)
    assert info["accuracy"].tolist() == [0.0, 1.0]
    assert Outcome().needs == (need,) and Outcome().couples == "row"

"""Supervised loss and entropy bonus against torch's own functions."""


import torch
import torch.nn.functional as F

from shuhari.batch import Batch
from shuhari.kernel.reduce import reduced, weights
from shuhari.needs import Need
from shuhari.objectives.entropy import Entropy
from shuhari.objectives.likelihood import Nll
from shuhari.testing import context

CTX = context()
MASK = torch.tensor([[True, True, True], [True, False, False]])
ACTION = torch.tensor([[0, 2, 1], [3, 0, 0]])


def logits():
    return torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(3)).requires_grad_()


def test_nll_of_the_ce_stream_is_cross_entropy():
    x = logits()
    logp = x.log_softmax(-1).gather(-1, ACTION[..., None]).squeeze(-1)
    batch = Batch({"mask": MASK, Need(("policy",), "log_prob", live=True).key: logp.where(MASK, torch.tensor(0.0))})
    loss, _ = Nll()(batch, CTX)
    got = torch.autograd.grad(reduced(loss, weights(MASK.float(), batch, "decision")), x)[0]
    y = logits()
    wanted = torch.autograd.grad(F.cross_entropy(y[MASK], ACTION[MASK]), y)[0]
    torch.testing.assert_close(got, wanted)
    assert Nll(role="student").needs[0].key == "live/student/log_prob" and Nll().couples == "row"


def test_the_bonus_is_minus_the_entropy():
    x = logits()
    entropy = torch.distributions.Categorical(logits=x).entropy()
    batch = Batch({"mask": MASK, "live/policy/entropy": entropy})
    loss, info = Entropy()(batch, CTX)
    torch.testing.assert_close(loss, -entropy)
    assert not info["entropy"].requires_grad and info["entropy"].equal(entropy.detach())
    assert Entropy().needs == (Need(("policy",), "entropy", live=True),) and Entropy().couples == "row"

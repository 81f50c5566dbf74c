"""RL-PLUS by hand, and without demonstrations against the surrogate without a clip."""

from math import inf, log, sqrt

import pytest
import torch

from shuhari.batch import Batch
from shuhari.needs import Need
from shuhari.objectives.clip import Clip
from shuhari.objectives.mixed_policy import MixedPolicy
from shuhari.testing import context

CTX = context()
LIVE, OLD = Need(("policy",), "log_prob", live=True), Need(("policy",), "log_prob")


def rows(new, old, advantage, demo):
    mask = torch.ones(new.shape, dtype=torch.bool)
    columns = {"mask": mask, "logp": old, "advantage": advantage, "demo": torch.tensor(demo)}
    return Batch({**columns, LIVE.key: new, OLD.key: old})


def one(pi, old, a=1.0, gamma=0.5, demo=1.0):
    """(loss, d loss / d log pi, weight) of one token."""
    new = torch.tensor([[log(pi)]], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[log(old)]], dtype=torch.float64)
    loss, info = MixedPolicy(gamma=gamma)(rows(new, old, torch.tensor([[a]], dtype=torch.float64), [demo]), CTX)
    return float(loss.detach()), float(torch.autograd.grad(loss.sum(), new)[0]), float(info["ratio"])


@pytest.mark.parametrize(("pi", "old", "w"), [(1.0, 1.0, 1.0), (0.5, 0.5, 0.8), (0.2, 0.2, 0.5), (1.0, 1e-9, 4.0)])
def test_the_weight_of_a_demonstrated_token(pi, old, w):
    assert one(pi, old)[2] == pytest.approx(w)


def test_weight_and_gradient_are_bounded_as_the_old_probability_falls():
    for old in (1e-2, 1e-6, 1e-12):
        for pi in (old, 0.3, 1.0):
            _, gradient, w = one(pi, old)
            assert w <= 4 and abs(gradient) <= 4


def test_unlikely_tokens_are_boosted_and_the_boost_has_no_gradient():
    loss, gradient, w = one(0.19, 0.3, a=2.0)
    assert sqrt(1 - 0.19) == pytest.approx(0.9)
    assert loss == pytest.approx(-w * 2.0 * 0.9) and gradient == pytest.approx(loss)  # dw / d log pi = w
    assert one(0.19, 0.3, a=2.0, gamma=0.0)[0] == pytest.approx(-w * 2.0)
    assert one(1.0, 1.0)[0] == 0.0  # what is certain teaches nothing


def test_own_samples_have_the_plain_ratio():
    loss, gradient, ratio = one(0.6, 0.2, a=-1.5, demo=0.0)
    assert ratio == pytest.approx(3.0) and loss == pytest.approx(4.5) and gradient == pytest.approx(4.5)


def test_without_demonstrations_it_is_the_surrogate_without_a_clip():
    draw = torch.Generator().manual_seed(0)
    new, old, a = (torch.randn(3, 4, generator=draw) - shift for shift in (3.0, 3.0, 0.0))
    new.requires_grad_()
    batch = rows(new, old, a, [0.0] * 3)
    ours, theirs = MixedPolicy()(batch, CTX)[0], Clip(low=inf, high=inf, behaviour="old")(batch, CTX)[0]
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(x.sum(), new, retain_graph=True)[0] for x in (ours, theirs)]
    torch.testing.assert_close(*gradients)

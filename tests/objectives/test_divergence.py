"""KL estimators on three symbols: expectations and expected gradients by enumeration."""

from types import SimpleNamespace

import pytest
import torch

from shuhari.batch import Batch
from shuhari.needs import Need
from shuhari.objectives.divergence import Divergence, estimate

CTX = SimpleNamespace(at=lambda x: x)
LIVE, REF = Need(("policy",), "log_prob", live=True), Need(("reference",), "log_prob")
LOGITS = torch.tensor([0.5, -0.3, 0.9])
Q = torch.tensor([0.2, 0.5, 0.3])


def kl(p, q):
    return (p * (p / q).log()).sum()


def gradient(f):
    """Of f(pi) by the logits."""
    x = LOGITS.clone().requires_grad_()
    return torch.autograd.grad(f(x.softmax(0)), x)[0]


def expected(**settings):
    """(E[loss], E[gradient], E[info]) under the policy itself, one row a symbol."""
    x = LOGITS.clone().requires_grad_()
    columns = {LIVE.key: x.log_softmax(0)[:, None], REF.key: Q.log()[:, None]}
    batch = Batch({"mask": torch.ones(3, 1, dtype=torch.bool), "logp": torch.zeros(3, 1), **columns})
    loss, info = Divergence(**settings)(batch, CTX)
    p = x.softmax(0).detach()
    mean = (p * loss[:, 0]).sum()
    return mean.detach(), torch.autograd.grad(mean, x)[0], (p * info["kl"][:, 0]).sum()


P = LOGITS.softmax(0)


@pytest.mark.parametrize("form", ["k1", "k3"])
@pytest.mark.parametrize("which", ["own", "kl", "auto"])
def test_k1_and_k3_are_unbiased_in_value(form, which):
    loss, _, info = expected(form=form, gradient=which)
    torch.testing.assert_close(loss, kl(P, Q))
    torch.testing.assert_close(info, kl(P, Q))


def test_k2_is_half_the_squared_log_ratio():
    loss, _, _ = expected(form="k2")
    torch.testing.assert_close(loss, (P * (P / Q).log() ** 2 / 2).sum())


def test_the_gradients_are_those_of_the_table():
    reverse, forward = gradient(lambda p: kl(p, Q)), gradient(lambda p: kl(Q, p))
    assert (reverse - forward).abs().max() > 0.05
    torch.testing.assert_close(expected(form="k1", gradient="own")[1], torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(expected(form="k2")[1], reverse)
    torch.testing.assert_close(expected(form="k3")[1], forward)
    for form in ("k1", "k2", "k3"):
        torch.testing.assert_close(expected(form=form, gradient="kl")[1], reverse)
    torch.testing.assert_close(expected(form="k1")[1], reverse)


def test_k3_is_never_negative_and_never_overflows():
    new, ref = torch.tensor([0.0, -1.0, -2.0, -900.0]), torch.tensor([-5.0, -1.0, 0.5, 0.0])
    k3 = estimate("k3", new, ref)
    assert bool((k3[:3] >= 0).all()) and k3[1] == 0 and bool(k3.isfinite().all())
    assert k3[2] == pytest.approx(2.5 * -1 + torch.tensor(2.5).exp().item() - 1)


def test_exact_reads_the_models_own():
    need = Need(("student", "teacher"), "kl", live=True)
    objective = Divergence(form="exact", role="student", to="teacher")
    assert objective.needs == (need,) and need.key == "live/student/kl:teacher"
    batch = Batch({"mask": torch.ones(1, 2, dtype=torch.bool), need.key: torch.tensor([[0.25, 0.5]])})
    loss, info = objective(batch, CTX)
    assert loss.tolist() == info["kl"].tolist() == [[0.25, 0.5]]
    assert Divergence().needs == (LIVE, REF) and Divergence().couples == "row"


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="did you mean 'exact'"):
        Divergence(form="exakt")
    with pytest.raises(ValueError, match="no gradient 'none'"):
        Divergence(gradient="none")
    with pytest.raises(ValueError, match="no form 'exact'"):
        estimate("exact", LOGITS, LOGITS)

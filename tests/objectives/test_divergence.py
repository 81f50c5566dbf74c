
"""KL estimators on three symbols: expectations and expected gradients by enumeration."""

import math
from itertools import product

import pytest
import torch

from shuhari.batch import Batch
from shuhari.needs import Need
from shuhari.objectives.clip import Clip
from shuhari.objectives.divergence import Divergence, Tempered, estimate, generator
from shuhari.testing import context
from shuhari.transforms.returns import Returns
from shuhari.transforms.shaping import KlInReward

CTX = context()
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


@pytest.mark.parametrize("d", [-900.0, -25.0, -20.5, -20.0, -19.0, -1.0, 0.5, 30.0])
def test_the_gradient_of_k3_has_the_sign_of_its_derivative_however_far_the_policy_is(d):
    """exp(-d) - 1 + d has the derivative 1 - exp(-d): by central differences of it where it can be represented, and
    beyond the limit with its sign, so that a penalty pulls a policy back that has lost a decision."""
    new = torch.tensor(d, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(estimate("k3", new, torch.zeros((), dtype=torch.float64)), new)
    if d > -20:
        h = 1e-5
        there = [torch.tensor(d + e, dtype=torch.float64) for e in (h, -h)]
        above, below = ((-x).exp() - 1 + x for x in there)
        torch.testing.assert_close(found, (above - below) / (2 * h), rtol=1e-6, atol=1e-8)
    else:
        assert found == pytest.approx(1 - math.exp(20)) and found.isfinite()


@pytest.mark.parametrize(("form", "alpha", "at"), [
    ("forward", 0.5, 20.0), ("js", 0.5, 20.0), ("alpha", 0.5, 20.0), ("alpha", -1.0, 10.0)])  # fmt: skip
def test_the_gradient_of_a_generator_does_not_jump_at_the_limit(form, alpha, at):
    """f is smooth, so its slope where an exponent is at the limit is near those just beside it."""
    d = (at + torch.tensor([-1e-3, 0.0, 1e-3], dtype=torch.float64)).requires_grad_()
    below, at, above = torch.autograd.grad(generator(form, d, alpha).sum(), d)[0].tolist()
    assert at == pytest.approx(below, rel=5e-3) and at == pytest.approx(above, rel=5e-3)


def test_exact_reads_the_models_own():
    need = Need(("student", "teacher"), "kl", live=True)
    objective = Divergence(form="exact", role="student", to="teacher")
    assert objective.needs == (need,) and need.key == "live/student/kl:teacher"
    batch = Batch({"mask": torch.ones(1, 2, dtype=torch.bool), need.key: torch.tensor([[0.25, 0.5]])})
    loss, info = objective(batch, CTX)
    assert loss.tolist() == info["kl"].tolist() == [[0.25, 0.5]]
    assert Divergence().needs == (LIVE, REF) and Divergence().couples == "row"


def test_what_is_no_estimate_is_named():
    with pytest.raises(ValueError, match="no form 'exact'"):
        estimate("exact", LOGITS, LOGITS)


# ---------------------------------------------------------------- on-policy distillation, by enumeration

END, DEPTH = 2, 3  # symbols 0, 1 and the end; sequences stop there, or after three symbols
SEQUENCES = [
    y
    for n in range(1, DEPTH + 1)
    for y in product(range(3), repeat=n)
    if END not in y[:-1] and (n == DEPTH or y[-1] == END)
]


def policies():
    """(student logits, teacher logits), both prefix -> [3], float64."""
    generator = torch.Generator().manual_seed(3)
    prefixes = [p for n in range(DEPTH) for p in product(range(2), repeat=n)]
    draw = [torch.randn(len(prefixes), 3, generator=generator, dtype=torch.float64) for _ in range(2)]
    return prefixes, draw[0].requires_grad_(), draw[1]


def distilled(loss_of):
    """Gradients by the student's logits: of the expected loss, summed over tokens, with the samples held fixed (what an
    infinite batch of its own samples gives), and of KL(student || teacher) over whole sequences."""
    prefixes, student, teacher = policies()
    at = torch.tensor([[prefixes.index(y[: min(k, len(y) - 1)]) for k in range(DEPTH)] for y in SEQUENCES])
    action = torch.tensor([[y[min(k, len(y) - 1)] for k in range(DEPTH)] for y in SEQUENCES])
    mask = torch.arange(DEPTH) < torch.tensor([len(y) for y in SEQUENCES])[:, None]
    new, ref = (x.log_softmax(-1)[at] for x in (student, teacher))
    taken = [x.gather(-1, action[..., None])[..., 0].masked_fill(~mask, 0.0) for x in (new, ref)]
    kl = (new.exp() * (new - ref)).sum(-1).masked_fill(~mask, 0.0)
    columns = {
        "mask": mask,
        "logp": taken[0].detach(),
        "length": mask.sum(1),
        "reward": torch.zeros(mask.shape, dtype=torch.float64),
        Need(("policy",), "log_prob", live=True).key: taken[0],
        Need(("policy",), "log_prob").key: taken[0].detach(),
        Need(("teacher",), "log_prob").key: taken[1],
        Need(("policy", "teacher"), "kl", live=True).key: kl,
    }
    p = taken[0].sum(1).exp()
    torch.testing.assert_close(p.sum(), p.new_ones(()))
    mean = (p.detach() * (loss_of(Batch(columns)) * mask).sum(1)).sum()
    sequence_kl = (p * (taken[0] - taken[1]).sum(1)).sum()
    return tuple(torch.autograd.grad(x, student, retain_graph=True)[0] for x in (mean, sequence_kl))


def term(**settings):
    return lambda batch: Divergence(to="teacher", **settings)(batch, CTX)[0]


def policy_gradient(gamma):
    """log teacher - log policy as a reward a token, discounted by gamma: its policy gradient."""

    def loss(batch):
        batch = Returns(gamma=gamma)(KlInReward(beta=1.0, reference="teacher")(batch, CTX), CTX)
        return Clip(behaviour="present")(batch, CTX)[0]

    return loss


def test_the_forms_of_distillation_are_one_gradient_that_of_the_kl_of_each_token_at_contexts_held_fixed():
    exact, sequence = distilled(term(form="exact"))
    for loss in (term(form="k1"), term(form="k2"), term(form="k3", gradient="kl"), policy_gradient(0.0)):
        torch.testing.assert_close(distilled(loss)[0], exact)
    assert (exact - sequence).abs().max() > 0.05  # it leaves out how a token changes the contexts after it


def test_the_gradient_of_the_sequence_kl_credits_each_token_with_those_after_it():
    full, sequence = distilled(policy_gradient(1.0))
    torch.testing.assert_close(full, sequence)


HALF, SKEW = torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25])
PAIR = {"forward": 0.14384, "js": 0.06764}  # of the policy SKEW from the reference HALF


def f_loss(form, on, policy, reference, **settings):
    """(value, gradient by the logits) of the expectation over whoever has sampled the rows, one row an action."""
    x = policy.log().clone().requires_grad_()
    columns = {LIVE.key: x.log_softmax(0)[:, None], REF.key: reference.log()[:, None]}
    batch = Batch({"mask": torch.ones(len(x), 1, dtype=torch.bool), "logp": reference.log()[:, None], **columns})
    loss, info = Divergence(form, rows=on, **settings)(batch, CTX)
    p = (reference if on == "to" else policy).detach()
    total = (p * loss[:, 0]).sum()
    torch.testing.assert_close((p * info["kl"][:, 0]).sum(), total.detach())
    return total.detach(), torch.autograd.grad(total, x)[0]


@pytest.mark.parametrize("on", ["to", "role"])
@pytest.mark.parametrize("form", ["forward", "js"])
def test_f_divergences_by_hand(form, on):
    assert float(f_loss(form, on, SKEW, HALF)[0]) == pytest.approx(PAIR[form], abs=1e-5)
    assert float(f_loss(form, on, SKEW, HALF, to="behaviour")[0]) == pytest.approx(PAIR[form], abs=1e-5)


def divergence(form, p, q, a=0.2):
    if form == "forward":
        return (q * (q / p).log()).sum()
    if form == "js":
        m = (p + q) / 2
        return (p * (p / m).log()).sum() + (q * (q / m).log()).sum()
    return ((q * (p / q) ** (1 - a)).sum() - 1) / (a * (a - 1))


@pytest.mark.parametrize("on", ["to", "role"])
@pytest.mark.parametrize("form", ["forward", "js", "alpha"])
def test_f_divergences_have_the_value_and_the_gradient_of_their_closed_form(form, on):
    value, slope = f_loss(form, on, P, Q, alpha=0.2)
    torch.testing.assert_close(value, divergence(form, P, Q))
    torch.testing.assert_close(slope, gradient(lambda p: divergence(form, p, Q)))
    same, flat = f_loss(form, on, P, P, alpha=0.2)
    assert float(same) == pytest.approx(0, abs=1e-6) and float(flat.abs().max()) < 1e-6


def test_generators_and_the_forward_estimate_by_hand():
    assert float(generator("js", torch.tensor(2.0).log())) == pytest.approx(0.16990, abs=1e-5)
    for form in ("forward", "js", "alpha"):
        assert float(generator(form, torch.tensor(0.0))) == pytest.approx(0, abs=1e-7)
        assert bool(generator(form, torch.tensor([-1e4, 1e4])).isfinite().all())
    columns = {LIVE.key: SKEW.log()[:, None].requires_grad_(), REF.key: HALF.log()[:, None]}
    batch = Batch({"mask": torch.ones(2, 1, dtype=torch.bool), "logp": torch.zeros(2, 1), **columns})
    loss, _ = Divergence("forward", gradient="own")(batch, CTX)
    assert loss[:, 0].tolist() == pytest.approx([0.06302, 0.38629], abs=1e-5)  # w log w - w + 1
    slope = torch.autograd.grad(loss.sum(), columns[LIVE.key])[0][:, 0]
    w = HALF / SKEW
    torch.testing.assert_close(slope, -w * w.log())  # through w


def test_a_tempered_reference_is_between_itself_and_uniform():
    class Table:
        def parameters(self):
            return torch.tensor([[0.2, 0.5, 0.3, 0.0]]).log().clamp(min=-1e30).expand(3, 4)

    action, phi = torch.tensor([1, 1, 1]), torch.tensor([1.0, 0.0, 0.5])
    found = Tempered("phi")((Table(),), action, lambda name: {"phi": phi}[name]).exp()
    roots = Q.sqrt()
    assert found.tolist() == pytest.approx([0.5, 1 / 3, float(roots[1] / roots.sum())])
    needs = Divergence("forward", temper="phi").needs
    assert needs[1] == Need(("reference",), Tempered("phi")) and "phi" in needs[1].key


@pytest.mark.parametrize(
    "wrong",
    [{"form": "k1", "rows": "to"}, {"form": "exact", "to": "behaviour"}, {"to": "behaviour", "temper": "x"},
     {"form": "exact", "temper": "x"}, {"temper": "x", "score": "entropy"}, {"form": "alpha", "alpha": 1.0}],
)  # fmt: skip
def test_what_does_not_go_together_is_told(wrong):
    with pytest.raises(ValueError, match="divergence: "):
        Divergence(**wrong)


FS = {
    ("forward", 0.5): (lambda u: u - 1 - u.log()),
    ("js", 0.5): (lambda u: u * u.log() - (u + 1) * ((u + 1) / 2).log()),
    ("alpha", 0.9): (lambda u: (u**0.1 - 0.1 * u - 0.9) / (0.9 * -0.1)),
    ("alpha", 1.5): (lambda u: (u**-0.5 + 0.5 * u - 1.5) / (1.5 * 0.5)),
    ("alpha", -1.0): (lambda u: (u**2 - 2 * u + 1) / 2),
}


@pytest.mark.parametrize("kind", FS)
def test_f_divergences_keep_their_gradient_where_the_policy_has_lost_the_decision(kind):
    """On samples of the reference the gradient in log u is u f'(u), on own samples f'(u); by autograd of the formula in
    double precision."""
    form, alpha = kind
    d = torch.tensor([-38.0, -25.0, -5.0, -0.5, 0.7, 3.0], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(FS[kind](d.exp()).sum(), d)
    u = d.detach().exp()
    batch = lambda rows: Batch(  # noqa: E731
        {"mask": torch.ones(6, 1, dtype=torch.bool), "logp": torch.zeros(6, 1), LIVE.key: d[:, None],
         REF.key: torch.zeros(6, 1, dtype=torch.float64)})  # fmt: skip
    for rows, slope in (("to", expected), ("role", expected / u)):
        loss, _ = Divergence(form, rows=rows, alpha=alpha)(batch(rows), CTX)
        (found,) = torch.autograd.grad(loss.sum(), d)
        keep = ((-alpha * d < 20) & ((1 - alpha) * d < 20)) if form == "alpha" else (d > -20) | (rows == "to")
        keep = keep | torch.tensor(form == "js")
        torch.testing.assert_close(found[keep], slope[keep], rtol=1e-6, atol=0)
        assert bool((found.sign() == d.detach().sign()).all())  # towards the reference, also past the bound


@pytest.mark.parametrize("kind", FS)
def test_f_divergences_never_overflow_and_always_lead_back(kind):
    d = torch.tensor([-900.0, -50.0, 50.0, 900.0], requires_grad=True)
    f = generator(kind[0], d, kind[1])
    (g,) = torch.autograd.grad(f.sum(), d)
    assert bool(f.isfinite().all()) and bool(g.isfinite().all()) and g[1] <= 0 <= g[2]


def test_unknown_behaviour_is_no_reference():
    batch = Batch({"mask": torch.ones(1, 1, dtype=torch.bool), "logp": torch.full((1, 1), torch.nan),
                   LIVE.key: torch.zeros(1, 1)})  # fmt: skip
    with pytest.raises(ValueError, match="behaviour log-probability is unknown"):
        Divergence("js", rows="to", to="behaviour")(batch, CTX)

"""The clipped surrogate by hand, and policy gradients against the exact one of a bandit, by enumeration.

What each paper makes of it is in `test_clip_family`.
"""


import numpy as np
import pytest
import torch

from shuhari.batch import Batch
from shuhari.data import Ramp
from shuhari.kernel.reduce import reduced, weights
from shuhari.needs import Need
from shuhari.objectives.clip import Clip
from shuhari.testing import context

CTX = context(count=5)
LIVE = Need(("policy",), "log_prob", live=True)
OLD = Need(("policy",), "log_prob")
PRESENT = Clip(behaviour="present")
CISPO = Clip(clips="weight", low=float("inf"), high=4.0)


def batch(new, old, advantage, mask=None, **columns):
    shape = new.shape
    mask = torch.ones(shape, dtype=torch.bool) if mask is None else mask
    return Batch({"mask": mask, "logp": old, "advantage": advantage, LIVE.key: new, **columns})


def column(*x):
    return torch.tensor(x)[:, None]


def one(r, a, **settings):
    """(loss, d loss / d log pi, info) of one decision with ratio r and advantage a."""
    new = column(float(np.log(r))).requires_grad_()
    loss, info = Clip(**settings)(batch(new, column(0.0), column(float(a))), CTX)
    return float(loss.detach()), float(torch.autograd.grad(loss.sum(), new)[0]), {k: float(v) for k, v in info.items()}


@pytest.mark.parametrize(
    ("r", "a", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, 0),
        (1.1, 2.0, -2.2, -2.2, 0),
        (1.5, 2.0, -2.56, 0.0, 1),  # good action, ratio above 1 + high
        (0.5, 2.0, -1.0, -1.0, 0),  # good action below: free to come back
        (1.5, -2.0, 3.0, 3.0, 0),  # bad action above: free to come back
        (0.5, -2.0, 1.6, 0.0, 1),  # bad action below 1 - low
        (0.9, -2.0, 1.8, 1.8, 0),
    ],
)
def test_the_surrogate_by_hand(r, a, loss, gradient, clipped):
    got = one(r, a, low=0.2, high=0.28)
    assert got[0] == pytest.approx(loss, rel=1e-5) and got[1] == pytest.approx(gradient, rel=1e-5)
    assert got[2]["clip_fraction"] == clipped and got[2]["ratio"] == pytest.approx(r)
    assert got[2]["approx_kl"] == pytest.approx(r - 1 - np.log(r), abs=1e-6)


@pytest.mark.parametrize(
    ("r", "a", "loss", "gradient"),
    [(5.0, -2.0, 6.0, 0.0), (2.0, -2.0, 4.0, 4.0), (0.5, -2.0, 1.6, 0.0), (5.0, 2.0, -2.4, 0.0)],
)
def test_dual_clip_bounds_the_loss_of_bad_actions(r, a, loss, gradient):
    got = one(r, a, dual=3.0)
    assert got[0] == pytest.approx(loss, rel=1e-5) and got[1] == pytest.approx(gradient, rel=1e-5)


def test_without_bounds_it_is_importance_weighting_and_nothing_overflows():
    inf = float("inf")
    for r, a in ((7.0, 2.0), (0.01, -3.0)):
        got = one(r, a, low=inf, high=inf)
        assert got[:2] == pytest.approx((-r * a, -r * a), rel=1e-5) and got[2]["clip_fraction"] == 0
    new = column(500.0, 500.0).requires_grad_()
    loss, _ = Clip()(batch(new, column(0.0, 0.0), column(0.0, -1.0)), CTX)
    assert bool(loss.isfinite().all()) and bool(torch.autograd.grad(loss.sum(), new)[0].isfinite().all())


def test_bounds_may_follow_a_schedule():
    new = column(float(np.log(1.3)))
    loss, _ = Clip(high=Ramp(0.1, 0.3, over=10))(batch(new, column(0.0), column(1.0)), CTX)  # at 5: 0.2
    assert float(loss) == pytest.approx(-1.2)


def test_levels_of_the_ratio():
    new = torch.tensor([[0.1, 0.2, 5.0], [0.05, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    data = batch(new, torch.zeros(2, 3), torch.ones(2, 3), mask, episode=torch.tensor([4, 4]))

    def ratio(level):
        return Clip(level=level)(data, CTX)[1]["ratio"][mask].log().tolist()

    assert ratio("decision") == pytest.approx([0.1, 0.2, 0.05, 0, 0], abs=1e-6)
    assert ratio("row") == pytest.approx([0.3, 0.3, 0.05, 0.05, 0.05], abs=1e-6)
    assert ratio("sequence") == pytest.approx([0.15, 0.15, 0.05 / 3, 0.05 / 3, 0.05 / 3], abs=1e-6)
    assert ratio("episode") == pytest.approx([0.35] * 5, abs=1e-6)
    assert Clip(level="episode").couples == "batch" and Clip(level="row").couples == "row"


def test_behaviour_old_reads_the_score_before_the_update():
    unknown = column(float("nan"))
    data = batch(column(-1.0), unknown, column(1.0)).put({OLD: column(-1.0)})
    assert Clip(behaviour="old").needs == (LIVE, OLD) and Clip().needs == (LIVE,)
    assert float(Clip(behaviour="old")(data, CTX)[0]) == -1.0
    with pytest.raises(ValueError, match="unknown"):
        Clip()(data, CTX)


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="did you mean 'decision'"):
        Clip(level="decisions")
    with pytest.raises(ValueError, match=r"centre = 'old' .*expected 'behaviour', or a role"):
        Clip(centre="old", behaviour="old")
    with pytest.raises(ValueError, match=r"dual is 0\.5"):
        Clip(dual=0.5)
    with pytest.raises(ValueError, match=r"dual is 3\.0.*clips = 'surrogate'"):
        Clip(dual=3.0, clips="weight")
    with pytest.raises(ValueError, match=r"clips is 'weights': did you mean 'weight'"):
        Clip(clips="weights")
    with pytest.raises(ValueError, match=r"truncate is 2\.0.*behaviour is 'behaviour': expected behaviour = 'old'"):
        Clip(truncate=2.0)
    for name in ("low", "high", "truncate"):
        with pytest.raises(ValueError, match=f"{name} is -0.1: expected a number of 0 or more"):
            Clip(**{name: -0.1})


# ------------------------------------------------------------------------------------ the exact gradient of a bandit

LOGITS = torch.tensor([0.3, -0.7, 1.1, 0.0])
REWARD = torch.tensor([1.0, -2.0, 0.5, 3.0])


def exact():
    """d/d logits of sum pi r = pi (r - J)."""
    pi = LOGITS.softmax(0)
    return pi * (REWARD - (pi * REWARD).sum())


def expected(objective, behaviour, baseline=0.0):
    """Minus the gradient of the objective's expectation over actions drawn from `behaviour`: one row an action."""
    logits = LOGITS.clone().requires_grad_()
    data = batch(logits.log_softmax(0)[:, None], behaviour.log()[:, None], (REWARD - baseline)[:, None])
    loss, _ = objective(data, CTX)
    return -torch.autograd.grad((behaviour * loss[:, 0]).sum(), logits)[0]


@pytest.mark.parametrize("baseline", [0.0, 1.7])
@pytest.mark.parametrize(
    "objective", [PRESENT, Clip(), Clip(low=1e-3, high=1e-3), Clip(dual=3.0), Clip(clips="weight"), CISPO]
)
def test_on_policy_the_expected_gradient_is_exact(objective, baseline):
    torch.testing.assert_close(expected(objective, LOGITS.softmax(0), baseline), exact())


def test_off_policy_the_unclipped_surrogate_and_the_unclipped_weight_are_exact():
    inf = float("inf")
    other = torch.tensor([0.4, 0.3, 0.2, 0.1])
    for clips in ("surrogate", "weight"):
        torch.testing.assert_close(expected(Clip(low=inf, high=inf, clips=clips), other), exact())
    assert (expected(PRESENT, other) - exact()).abs().max() > 0.1


def test_sampled_gradient_approaches_the_exact_one():
    g = torch.Generator().manual_seed(0)
    n = 200_000
    pi = LOGITS.softmax(0)
    action = torch.multinomial(pi, n, replacement=True, generator=g)
    logits = LOGITS.clone().requires_grad_()
    logp = logits.log_softmax(0)[action][:, None]
    data = batch(logp, logp.detach(), REWARD[action][:, None])
    loss = Clip()(data, CTX)[0]
    gradient = -torch.autograd.grad(reduced(loss, weights(torch.ones(n, 1), data, "decision")), logits)[0]
    torch.testing.assert_close(gradient, exact(), atol=0.02, rtol=0)  # four standard errors


def test_two_token_sequences_against_enumeration():
    """A policy over sequences of two tokens from {0, 1}, the second by the first: the gradient through token rows."""
    first, second = torch.tensor([0.2, -0.4]), torch.tensor([[0.5, 0.1], [-1.0, 0.3]])
    reward = torch.tensor([[1.0, 0.0], [-1.0, 4.0]])
    a, b = first.clone().requires_grad_(), second.clone().requires_grad_()
    p = a.softmax(0)[:, None] * b.softmax(1)
    wanted = torch.autograd.grad((p * reward).sum(), (a, b))
    u, v = first.clone().requires_grad_(), second.clone().requires_grad_()
    i, j = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    new = torch.stack([u.log_softmax(0)[i], v.log_softmax(1)[i, j]], 1)
    data = batch(new, new.detach(), reward[i, j][:, None].expand(4, 2))
    chance = p.detach()[i, j]
    for objective in (PRESENT, Clip()):
        loss, _ = objective(data, CTX)
        got = torch.autograd.grad(-(chance * loss.sum(1)).sum(), (u, v), retain_graph=True)
        for x, y in zip(got, wanted, strict=True):
            torch.testing.assert_close(x, y)
    row, _ = Clip(level="row")(data, CTX)  # a ratio a row stands at both positions, so it counts by half at each
    got = torch.autograd.grad(-(chance * row.mean(1)).sum(), (u, v))
    for x, y in zip(got, wanted, strict=True):
        torch.testing.assert_close(x, y)


def test_a_ratio_over_another_role():
    """A-LoL: the policy over the reference that it started from."""
    clip = Clip(behaviour="reference", low=0.2, high=0.2)
    reference = Need(("reference",), "log_prob")
    assert clip.needs == (LIVE, reference) and all(n.exact for n in clip.needs)
    data = batch(column(float(np.log(0.6))), column(float("nan")), column(2.0), **{reference.key: column(np.log(0.5))})
    loss, info = clip(data, CTX)
    assert float(info["ratio"]) == pytest.approx(1.2) and float(loss) == pytest.approx(-2.4)


def test_bounds_about_the_policy_before_the_update():
    """ReMix by hand: pi_old / mu = 2, so that pi / mu = 2.5 is held at 2.2, and 2.1 is free."""
    clip = Clip(centre="old")
    assert clip.needs == (LIVE, OLD)
    new = column(float(np.log(2.5)), float(np.log(2.1)), float(np.log(1.5))).requires_grad_()
    old = {OLD.key: column(*[float(np.log(2.0))] * 3)}
    loss, info = clip(batch(new, column(0.0, 0.0, 0.0), column(1.0, 1.0, -1.0), **old), CTX)
    assert loss[:, 0].tolist() == pytest.approx([-2.2, -2.1, 1.8])
    assert torch.autograd.grad(loss.sum(), new)[0][:, 0].tolist() == pytest.approx([0, -2.1, 0])
    assert info["clip_fraction"][:, 0].tolist() == [1, 0, 1]


def test_a_ratio_of_another_score():
    clip = Clip(score="bound")
    assert clip.needs == (Need(("policy",), "bound", live=True),) and not clip.needs[0].exact
    assert not PRESENT.needs[0].exact  # no ratio: the gradient of a bound is one

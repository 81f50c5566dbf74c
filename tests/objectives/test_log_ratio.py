"""Regression of log-ratios: the losses and gradients of three papers, by algebra, by hand and by enumeration."""

from itertools import combinations
from math import exp, log, log1p

import numpy as np
import pytest
import torch

from shuhari.batch import Batch
from shuhari.config.recipe import load
from shuhari.data import Ramp
from shuhari.kernel.reduce import reduced, weights
from shuhari.loop.run import train
from shuhari.needs import Need
from shuhari.objectives.clip import Clip
from shuhari.objectives.log_ratio import LogRatio
from shuhari.objectives.preference import Preference
from shuhari.testing import context
from small_runs import POLICY

CTX = context(count=5)
LIVE, OLD = Need(("policy",), "log_prob", live=True), Need(("policy",), "log_prob")
REF = Need(("reference",), "log_prob")
COPG = LogRatio(centre="leave-one-out", over="reference", beta=0.5)
PACS = LogRatio(link="logistic", centre="leave-one-out", balance=True)


def rows(s, a, group=None, **columns):
    """One decision a row: log-ratios s over a log-probability of -1, advantages a."""
    s, a = torch.as_tensor(s, dtype=torch.float64), torch.as_tensor(a, dtype=torch.float64)
    old = torch.full((len(s), 1), -1.0, dtype=torch.float64)
    known = {LIVE.key: (s[:, None] + old).requires_grad_(), OLD.key: old, REF.key: old, "logp": old}
    group = torch.zeros(len(s), dtype=torch.long) if group is None else torch.tensor(group)
    mask = torch.ones(len(s), 1, dtype=torch.bool)
    return Batch({"mask": mask, "advantage": a[:, None], "group": group, **known, **columns})


def slope(objective, batch):
    """(loss [B], d mean loss / d s [B])."""
    loss, _ = objective(batch, CTX)
    (g,) = torch.autograd.grad(loss.mean(), batch[LIVE])
    return loss.detach(), g[:, 0]


# ---------------------------------------------------------------- the square link


def test_kimi_its_gradient_term_by_term():
    """(1/k) sum of grad log pi (r - mean r) - tau / 2 grad (log-ratio)^2, ascended (section 2.3.2)."""
    s, r, tau = torch.tensor([0.3, -0.2, 0.5, 0.0]), torch.tensor([1.0, 0.0, 1.0, 1.0]), 0.7
    _, g = slope(LogRatio(beta=tau), rows(s, r - r.mean()))
    expected = [-(float(ri - r.mean()) - tau * float(si)) / 4 for si, ri in zip(s, r, strict=True)]
    assert g.tolist() == pytest.approx(expected)


def test_kimi_at_the_reference_it_is_reinforce_with_the_mean_as_baseline():
    r = torch.tensor([1.0, 0.0, 0.0, 0.5])
    batch = rows(torch.zeros(4), r - r.mean())
    _, g = slope(LogRatio(beta=0.3), batch)
    _, reinforce = slope(Clip(behaviour="present"), batch)
    assert g.tolist() == pytest.approx(reinforce.tolist())
    assert g.tolist() == pytest.approx((-(r - r.mean()) / 4).tolist())


def test_kimi_the_mirror_descent_optimum_has_no_loss_with_the_exact_normaliser():
    """pi in proportion to pi_i e^(r / tau): log-ratios are (r - tau log Z) / tau, and what is left out of the loss,
    A^2 / (2 tau), is all there is of it."""
    r, old, tau = torch.tensor([1.0, 0.0, 0.3]), torch.tensor([0.2, 0.5, 0.3]), 0.4
    z = float((old * (r / tau).exp()).sum())
    a = r - tau * log(z)
    loss, g = slope(LogRatio(beta=tau), rows(a / tau, a))
    assert (loss + a**2 / (2 * tau)).tolist() == pytest.approx([0.0] * 3, abs=1e-6)
    assert g.tolist() == pytest.approx([0.0] * 3, abs=1e-6)


def test_copg_the_gradient_of_a_pair_is_that_of_its_squared_difference():
    """-g = -(R_beta(y) - R_beta(y'))(grad log pi(y) - grad log pi(y')), and the gradient of Delta^2 / (2 beta)."""
    s, r, beta = (0.4, -0.3), (0.2, 0.9), 0.5
    loss, g = slope(COPG, rows(s, r))
    contrast = (r[0] - beta * s[0]) - (r[1] - beta * s[1])
    assert g.tolist() == pytest.approx([-contrast, contrast])
    x = torch.tensor(s, dtype=torch.float64, requires_grad=True)
    whole = ((r[0] - r[1]) - beta * (x[0] - x[1])) ** 2 / (2 * beta)
    assert torch.autograd.grad(whole, x)[0].tolist() == pytest.approx(g.tolist())
    assert float(loss.mean()) == pytest.approx(float(whole.detach()) - (r[0] - r[1]) ** 2 / (2 * beta))


def test_copg_a_group_is_the_mean_over_its_pairs():
    """Of k samples: k / (2 (k - 1)) of that mean, in value and gradient."""
    s, r, beta = [0.4, -0.3, 0.1, 0.7], [0.2, 0.9, 0.0, 1.0], 0.5
    loss, g = slope(COPG, rows(s, r))
    x = torch.tensor(s, dtype=torch.float64, requires_grad=True)
    pairs = [((r[i] - r[j]) - beta * (x[i] - x[j])) ** 2 - (r[i] - r[j]) ** 2 for i, j in combinations(range(4), 2)]
    mean = 4 / (2 * 3) * torch.stack(pairs).mean() / (2 * beta)
    assert float(loss.mean()) == pytest.approx(float(mean.detach()))
    assert g.tolist() == pytest.approx(torch.autograd.grad(mean, x)[0].tolist())


@pytest.mark.parametrize("mu", [(0.5, 0.5), (0.9, 0.1), (0.02, 0.98)])
def test_copg_has_one_fixed_point_whatever_samples_it_sees(mu):
    """Two actions, R = (1, 0), beta = 1, uniform reference: (0.7311, 0.2689)."""
    objective, z = LogRatio(centre="leave-one-out", over="reference", beta=1.0), torch.zeros(2, dtype=torch.float64)
    pairs = torch.tensor([(i, j) for i in (0, 1) for j in (0, 1)])
    chance = torch.tensor([mu[i] * mu[j] for i, j in pairs.tolist()], dtype=torch.float64).repeat_interleave(2)
    arms, reward = pairs.flatten(), torch.tensor([1.0, 0.0], dtype=torch.float64)
    for _ in range(600):
        z.requires_grad_()
        batch = rows(torch.zeros(8), reward[arms], group=[0, 0, 1, 1, 2, 2, 3, 3])
        columns = {LIVE.key: z.log_softmax(0)[arms][:, None], REF.key: torch.full((8, 1), log(0.5))}
        loss, _ = objective(batch.put(columns), CTX)
        (g,) = torch.autograd.grad((loss * chance).sum(), z)
        z = (z - 0.5 * g).detach()
    assert z.softmax(0).tolist() == pytest.approx([0.7311, 0.2689], abs=5e-5)


def test_copg_with_labels_is_ipo():
    """R = 1/4 for the better and -1/4 for the worse of a pair: the loss of IPO up to a factor and a constant."""
    beta = 0.2
    s = torch.tensor([0.6, -0.1])
    batch = rows(s, [0.25, -0.25])
    _, g = slope(LogRatio(centre="leave-one-out", over="reference", beta=beta), batch)
    ipo, _ = Preference(form="ipo", beta=beta)(batch.link("pairs", torch.tensor([[0, 1]])), CTX)
    (h,) = torch.autograd.grad(ipo.sum(), batch[LIVE])
    assert g.tolist() == pytest.approx((beta / 2 * h[:, 0]).tolist())
    at_rest = rows([1 / (2 * beta), 0.0], [0.25, -0.25])  # the target margin
    assert slope(LogRatio(centre="leave-one-out", over="reference", beta=beta), at_rest)[1].abs().max() < 1e-9


def test_copg_on_policy_without_regulariser_is_rloo():
    """k = 2, beta = 0: twice the leave-one-out policy gradient."""
    r = torch.tensor([0.8, 0.1, 0.4, 0.4])
    batch = rows([0.3, -0.5, 0.2, 0.9], r, group=[7, 7, 9, 9])
    _, g = slope(LogRatio(centre="leave-one-out", over="reference", beta=0.0), batch)
    others = torch.tensor([0.1, 0.8, 0.4, 0.4])
    _, rloo = slope(Clip(behaviour="present"), batch.put({"advantage": (r - others)[:, None]}))
    assert g.tolist() == pytest.approx((2 * rloo).tolist())


def test_the_three_squares_agree_at_the_reference():
    """There Kimi's and CoPG's gradients are the policy gradient with a group baseline, up to (n / (n - 1))^2."""
    r = torch.tensor([1.0, 0.0, 0.0])
    _, kimi = slope(LogRatio(), rows(torch.zeros(3), r - r.mean()))
    _, mean = slope(LogRatio(centre="mean"), rows(torch.zeros(3), r))
    _, copg = slope(COPG, rows(torch.zeros(3), r))
    assert kimi.tolist() == pytest.approx(mean.tolist())
    assert copg.tolist() == pytest.approx((kimi * (3 / 2) ** 2).tolist())


# ---------------------------------------------------------------- the logistic link


def test_pacs_before_any_step_the_loss_is_ln_2():
    for r in ([1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 1.0]):
        loss, _ = slope(PACS, rows(torch.zeros(len(r)), r))
        assert float(loss.mean()) == pytest.approx(log(2))


def test_pacs_of_two_is_the_leave_one_out_policy_gradient():
    """d loss / d r_1 = -0.5, d loss / d r_2 = +0.5 at beta = 1."""
    _, g = slope(PACS, rows(torch.zeros(2), [1.0, 0.0]))
    assert g.tolist() == pytest.approx([-0.5, 0.5])


def test_pacs_balances_the_labels_of_mixed_groups_only():
    """n = 4 with one right: weights (2, 2/3, 2/3, 2/3); a unanimous group weighs 1 and still has a gradient."""
    s = [0.2, -0.4, 0.0, 0.1, 0.3, -0.3]
    batch = rows(s, [1.0, 0.0, 0.0, 0.0, 1.0, 1.0], group=[0, 0, 0, 0, 1, 1])
    loss, g = slope(PACS, batch)
    plain, _ = slope(LogRatio(link="logistic", centre="leave-one-out"), batch)
    assert (loss / plain).tolist() == pytest.approx([2, 2 / 3, 2 / 3, 2 / 3, 1, 1])
    assert g[4:].abs().min() > 0.01
    by_hand = 2 * log1p(exp(-(0.2 - (-0.4 + 0.0 + 0.1) / 3)))
    assert float(loss[0]) == pytest.approx(by_hand)


def test_pacs_a_shift_of_all_scores_changes_nothing():
    s, r = torch.tensor([0.3, -0.2, 0.8]), [1.0, 0.0, 1.0]
    (a, ga), (b, gb) = slope(PACS, rows(s, r)), slope(PACS, rows(s + 5, r))
    assert a.tolist() == pytest.approx(b.tolist()) and ga.tolist() == pytest.approx(gb.tolist())


def test_pacs_the_balance_is_that_of_scikit_learn():
    weigh = pytest.importorskip("sklearn.utils.class_weight").compute_class_weight
    labels = np.array([1.0, 0, 0, 1, 0, 0, 0])
    per_class = weigh("balanced", classes=np.array([0.0, 1.0]), y=labels)
    batch = rows(torch.zeros(7), labels)
    loss, _ = slope(PACS, batch)
    assert (loss / log(2)).tolist() == pytest.approx([per_class[int(x)] for x in labels])


def test_labels_outside_of_0_and_1_are_refused():
    with pytest.raises(ValueError, match=r"labels of -0\.5 to 1.*centre = 'none'"):
        PACS(rows(torch.zeros(2), [1.0, -0.5]), CTX)


# ---------------------------------------------------------------- rows of several decisions, settings


def several(mask):
    new = torch.tensor([[0.1, 0.4, 9.0], [-0.3, 0.2, 0.6]])
    advantage = torch.tensor([[0.5, 0.5, 0.0], [-0.5, -0.5, -0.5]])
    columns = {LIVE.key: new.requires_grad_(), OLD.key: torch.zeros(2, 3), "logp": torch.full((2, 3), 0.1)}
    return Batch({"mask": mask, "advantage": advantage, "group": torch.zeros(2, dtype=torch.long), **columns})


def test_the_log_ratio_is_summed_over_decisions_and_padding_is_none():
    batch = several(torch.tensor([[True, True, False], [True, True, True]]))

    def s(**settings):
        return LogRatio(**settings)(batch, CTX)[1]["log_ratio"].tolist()

    assert s() == pytest.approx([0.5, 0.5]) and s(level="sequence") == pytest.approx([0.25, 0.5 / 3])
    assert s(over="behaviour") == pytest.approx([0.3, 0.2]) and s(over="none") == pytest.approx([0.5, 0.5])
    loss, _ = LogRatio(beta=1.0)(batch, CTX)
    w = weights(torch.ones(2, 3), batch, "row")
    (g,) = torch.autograd.grad(reduced(loss, w), batch[LIVE])
    assert g.flatten().tolist() == pytest.approx([0.0, 0.0, 0.0, 0.5, 0.5, 0.5])  # (s - A) / 2 at every decision


def test_a_beginning_that_was_frozen_is_no_part_of_the_sum():
    """As of a rollout that was resumed: what was said before is masked."""
    batch = several(torch.tensor([[False, True, False], [False, False, True]]))
    loss, info = LogRatio()(batch, CTX)
    assert info["log_ratio"].tolist() == pytest.approx([0.4, 0.6])
    (g,) = torch.autograd.grad(loss.sum(), batch[LIVE])
    assert g[:, 0].tolist() == [0, 0] and g[1].tolist() == pytest.approx([0, 0, 1.1])


def test_what_couples_rows_says_so():
    assert LogRatio().couples == "row"
    for coupled in (COPG, PACS, LogRatio(level="episode"), LogRatio(centre="mean")):
        assert coupled.couples == "batch"
    assert LogRatio(over="reference").needs == (LIVE, REF) and LogRatio().needs == (LIVE, OLD)
    assert LogRatio(over="behaviour").needs == LogRatio(over="none").needs == (LIVE,)


def test_beta_may_follow_a_schedule():
    batch = rows([0.4], [0.3])
    assert slope(LogRatio(beta=Ramp(0.0, 1.0, over=10)), batch)[1].tolist() == pytest.approx([0.5 * 0.4 - 0.3])


def test_balance_without_labels_is_refused():
    with pytest.raises(ValueError, match="balance weighs labels"):
        LogRatio(balance=True)


# ---------------------------------------------------------------- in a run

RUN = f"""
steps = 2
[task]
name = "arithmetic"
kind = "carry"
digits = 1
{POLICY}[rollout]
n = 4
sampling.max_new = 4
[buffer]
size = 6
[reward]
length = {{}}
weights = {{score = 1.0, length = 1.0}}
[collect.advantage]
scale = "none"
[part.policy]
epochs = 2
minibatches = 2
terms.log_ratio = {{centre = "leave-one-out", reduce = "row"}}
optimiser.lr = 1e-2
"""


def test_a_cut_into_micro_batches_changes_no_gradient(tmp_path):
    """Groups are cut apart by it, and their centre is that of the whole."""
    (tmp_path / "r.toml").write_text(RUN)
    made = load(tmp_path / "r.toml")
    reports = [list(train(made.with_settings({"micro_batch": cut}))) for cut in (0, 12)]
    for whole, pieces in zip(*reports, strict=True):
        assert whole["policy/grad_norm"] > 1e-3 and whole["policy/error"] > 0
        for name in ("policy/grad_norm", "policy/loss/log_ratio", "policy/log_ratio", "policy/error"):
            assert whole[name] == pytest.approx(pieces[name], rel=1e-3, abs=1e-6), name

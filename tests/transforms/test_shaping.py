"""KL in the reward: the formula, its stamps, its expectation by enumeration. Overlong punishment by hand."""


import pytest
import torch

from shuhari.batch import Batch
from shuhari.needs import Need
from shuhari.testing import context
from shuhari.transforms.shaping import KlInReward, Overlong

CTX = context()


def batch(new, ref, mask, reward):
    columns = {"mask": mask, "logp": torch.zeros(mask.shape), "reward": reward}
    return Batch({**columns, "policy/log_prob": new, "reference/log_prob": ref})


def test_each_decision_pays_for_its_own_divergence():
    mask = torch.tensor([[True, False, True], [True, True, False]])
    new = torch.tensor([[-1.0, 50.0, -2.0], [-0.5, -3.0, float("nan")]])
    ref = torch.tensor([[-2.0, -9.0, -1.5], [-0.5, -1.0, 7.0]])
    reward = torch.tensor([[0.0, 0.0, 1.0], [0.0, 2.0, 0.0]])
    out = KlInReward(beta=0.5)(batch(new, ref, mask, reward), CTX)
    assert out["reward/kl"].tolist() == [[-0.5, 0, 0.25], [0, 1.0, 0]]
    assert out["reward"].tolist() == [[-0.5, 0, 1.25], [0, 3.0, 0]]
    assert KlInReward().needs == (Need(("policy",), "log_prob"), Need(("reference",), "log_prob"))


def test_ungraded_stays_ungraded():
    x = torch.zeros(1, 2)
    out = KlInReward(beta=1.0)(batch(x, x, torch.ones(1, 2, dtype=torch.bool), x + float("nan")), CTX)
    assert bool(out["reward"].isnan().all()) and out["reward/kl"].tolist() == [[0, 0]]


@pytest.mark.parametrize("form", ["k1", "k3"])
def test_the_expected_penalty_is_beta_times_kl(form):
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    mask = torch.ones(3, 1, dtype=torch.bool)
    out = KlInReward(beta=2.0, form=form)(batch(p.log()[:, None], q.log()[:, None], mask, torch.zeros(3, 1)), CTX)
    torch.testing.assert_close((p * out["reward"][:, 0]).sum(), -2 * (p * (p / q).log()).sum())


def answers(*lengths, width=12):
    """Rows of one answer each, a token of the prompt's side before it, that earn 1 on their last decision."""
    mask = torch.zeros(len(lengths), width, dtype=torch.bool)
    reward = torch.zeros(mask.shape)
    for row, n in enumerate(lengths):
        mask[row, 1 : n + 1] = True
        reward[row, n] = 1.0
    return Batch({"mask": mask, "logp": torch.zeros(mask.shape), "reward": reward})


def test_overlong_answers_are_punished_by_equation_13():
    data = answers(1, 6, 7, 8, 9, 10, 11)  # L_max = 10, L_cache = 4
    out = Overlong(length=10, cache=4)(data, CTX)
    assert out["reward/overlong"].sum(1).tolist() == [0, 0, -0.25, -0.5, -0.75, -1, -1]
    assert out["reward"].sum(1).tolist() == [1, 1, 0.75, 0.5, 0.25, 0, 0]
    assert out["reward"][3].tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 0.5, 0, 0, 0]  # on the last decision
    half = Overlong(length=10, cache=4, weight=0.5)(data, CTX)
    assert half["reward/overlong"].sum(1).tolist() == [0, 0, -0.125, -0.25, -0.375, -0.5, -0.5]
    assert data["reward"].sum() == 7  # the batch that came in is as it was


def test_overlong_counts_decisions_and_leaves_the_ungraded_so():
    mask = torch.tensor([[True, False, True, True], [True] * 4, [False] * 4])
    reward = torch.tensor([[0, 0, 0, 1.0], [float("nan")] * 4, [0.0] * 4])
    out = Overlong(length=4, cache=2)(Batch({"mask": mask, "logp": torch.zeros(3, 4), "reward": reward}), CTX)
    assert out["reward/overlong"].tolist() == [[0, 0, 0, -0.5], [0, 0, 0, -1.0], [0, 0, 0, 0]]
    assert out["reward"][0].tolist() == [0, 0, 0, 0.5] and bool(out["reward"][1].isnan().all())


def test_a_cache_beyond_the_length_is_named():
    with pytest.raises(ValueError, match="cache is 9: expected at most length, which is 8"):
        Overlong(length=8, cache=9)

"""KL in the reward: the formula, its stamps, and its expectation by enumeration."""

from types import SimpleNamespace

import pytest
import torch

from shuhari.batch import Batch
from shuhari.needs import Need
from shuhari.transforms.shaping import KlInReward

CTX = SimpleNamespace(at=lambda x: x)


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


def test_a_wrong_form_is_named():
    with pytest.raises(ValueError, match="no form 'k4'"):
        KlInReward(form="k4")

"""The limit on a cost as losses read it, by hand: episodes that begin in a batch, the price, PPO where it is 0, the
constraint's value and gradient, FOCOPS within its bound."""

import pytest
import torch

from shuhari.batch import Batch
from shuhari.models.critics import ScalarModel
from shuhari.objectives.clip import Clip
from shuhari.objectives.constrained import Constraint, Focops
from shuhari.objectives.dual import Dual
from shuhari.testing import check_objective, context
from shuhari.transforms.constrain import Constrain, count_begun

COSTS = torch.tensor([[1.0], [3.0], [0.0], [2.0], [0.0]])


def batch(**more):
    """Two decisions that go on with an earlier episode, one whole episode of one, one of one; the last row closes."""
    columns = {
        "mask": torch.tensor([[True]] * 4 + [[False]]),
        "episode": torch.tensor([4, 4, 5, 6, 6]),
        "resumes": torch.tensor([True, False, False, False, False]),
        "reward/cost": COSTS,
        "cost_advantage": torch.tensor([[1.0], [2.0], [3.0], [6.0], [0.0]]),
        "advantage": torch.tensor([[1.0], [-1.0], [2.0], [0.5], [0.0]]),
        "logp": torch.zeros(5, 1),
        **more,
    }
    return Batch(columns, stream="rl")


def price(value):
    model = ScalarModel(initial=value)
    model.build(None)
    return model


def test_the_excess_of_episodes_that_begin():
    found = Constrain(limit=2.5)(batch(), context())
    assert count_begun(batch()) == 2  # the first goes on; the other two cost 6 / 2 with what is left of it
    assert found["excess"].unique().tolist() == [0.5]
    assert found["excess_rate"].unique().tolist() == [0.25]  # of episodes of two decisions
    assert found["cost_advantage"].flatten().tolist() == [-2.0, -1.0, 0.0, 3.0, 0.0]  # centred, and no more
    assert found["advantage"].tolist() == batch()["advantage"].tolist()


def test_the_price_mixes_advantages():
    ctx = context(models={"multiplier": price(2.0)})
    mixed = Constrain(limit=2.5, multiplier="multiplier")(batch(), ctx)["advantage"].flatten()
    assert mixed.tolist() == pytest.approx([5 / 3, 1 / 3, 2 / 3, -5.5 / 3, 0.0])
    whole = Constrain(limit=2.5, multiplier="multiplier", share=False)(batch(), ctx)["advantage"].flatten()
    assert whole.tolist() == pytest.approx([5.0, 1.0, 2.0, -5.5, 0.0])


def test_without_a_price_it_is_ppo():
    new = torch.tensor([[0.3], [-0.2], [0.1], [0.0], [0.0]])
    mine = Constrain(limit=2.5, multiplier="multiplier")(batch(), context(models={"multiplier": price(1e-12)}))
    losses = [Clip()(x.put({Clip().needs[0].key: new}), context())[0] for x in (mine, batch())]
    torch.testing.assert_close(*losses)


def test_the_multiplier_rises_with_the_excess():
    multiplier = price(1.0)
    loss, info = Dual()(Constrain(limit=2.5)(batch(), context()), context(models={"multiplier": multiplier}))
    loss.mean().backward()
    assert float(multiplier.module.log.grad) == -0.5 and float(info["multiplier"]) == 1.0


def test_the_constraint_is_the_excess_and_has_the_gradient_of_the_cost():
    new = torch.zeros(5, 1, requires_grad=True)
    seen = Constrain(limit=2.5)(batch(), context())
    loss, _ = check_objective(Constraint(), seen.put({Constraint().needs[0].key: new}), context())
    loss = loss[seen["mask"]]
    assert float(loss.mean()) == pytest.approx(0.25)
    loss.sum().backward()
    assert new.grad.flatten().tolist() == [-2.0, -1.0, 0.0, 3.0, 0.0]


def test_focops_learns_within_its_bound():
    new, kl = torch.full((5, 1), 0.5).log().requires_grad_(), torch.tensor([[0.01], [0.03], [0.02], [0.5], [0.0]])
    log_prob, divergence = Focops().needs
    seen = batch().put({log_prob.key: new, divergence.key: kl})
    loss, info = check_objective(Focops(bound=0.02, temperature=2.0), seen, context())
    assert loss.flatten().tolist() == pytest.approx([0.01 - 0.25, 0.0, 0.02 - 0.5, 0.0, 0.0])
    loss.sum().backward()
    assert new.grad.flatten().tolist() == pytest.approx([-0.25, 0.0, -0.5, 0.0, 0.0])
    assert info["within"].flatten().tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]

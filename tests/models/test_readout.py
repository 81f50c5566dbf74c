"""Values as distributions over bins: the catalogue's numbers, limits of the smearing, two-hot shares, and the gradient
of a cross-entropy; deep Q-learning and value regression on them."""

from types import SimpleNamespace

import pytest
import torch
from gymnasium import spaces

from shuhari.batch import Batch
from shuhari.models.critics import ContinuousQ, DiscreteQ
from shuhari.models.readout import Bins, Values
from shuhari.needs import Need, evaluate
from shuhari.objectives.td import QLearning, SmoothedTD
from shuhari.objectives.value import Value
from shuhari.testing import context
from shuhari.testing.models import perturb

THREE = Bins(-1.5, 1.5, 3)


class Seen:
    def spaces(self):
        return spaces.Box(-9, 9, (2,)), spaces.Discrete(3)


def test_a_smeared_target_by_the_error_function():
    assert THREE.target(torch.tensor(0.0)).tolist() == pytest.approx([0.2407, 0.5186, 0.2407], abs=1e-4)
    assert THREE.target(torch.tensor([7.0, 1.5])).tolist()[0] == THREE.target(torch.tensor(1.5)).tolist()


def test_the_limits_of_the_smearing():
    y = torch.tensor([-1.2, 0.3, 0.9])
    assert Bins(-1.5, 1.5, 3, 1e-3).target(y).tolist() == torch.eye(3).tolist()
    wide = Bins(-1.5, 1.5, 3, 1e3).target(y)
    torch.testing.assert_close(wide, torch.full((3, 3), 1 / 3), atol=1e-3, rtol=0)


def test_two_nearest_centres_keep_the_mean():
    bins = Bins(-1.5, 1.5, 3, 0.0)
    assert bins.target(torch.tensor(-0.25)).tolist() == [0.25, 0.75, 0.0]
    y = torch.linspace(-1, 1, 9)
    torch.testing.assert_close(bins.target(y) @ bins.centres, y)
    assert bins.target(torch.tensor([-1.4, 9.0])).tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]


def test_the_gradient_is_the_difference_of_probabilities():
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([-2.0, 0.0, 0.4, 1.1], dtype=torch.float64, requires_grad=True)
    bins = Bins(-1.5, 1.5, 3)
    found = torch.autograd.grad(bins.fit(logits, y).sum(), (logits, y), allow_unused=True)
    torch.testing.assert_close(found[0], logits.softmax(-1).detach() - bins.target(y.detach()))
    assert found[1] is None
    # at the optimum, logits are the log of the target, and a target at the middle centre decodes exactly
    assert float(bins.value(bins.target(torch.zeros(())).log())) == pytest.approx(0, abs=1e-7)


def test_a_range_has_to_be_one():
    with pytest.raises(ValueError, match="low < high"):
        Bins(1.0, 1.0)


def test_deep_q_learning_fits_the_bins_of_the_action_taken():
    torch.manual_seed(0)
    policy, target = DiscreteQ((8,), bins=Bins(-2, 2, 4)), DiscreteQ((8,))
    for model in (policy, target):
        model.build(Seen())
        perturb(model, 0.5)
    batch = Batch(
        {
            "context": torch.randn(4, 2),
            "action": torch.tensor([2, 0, 0, 0]),
            "reward": torch.tensor([[0.5], [9.0], [0.0], [0.0]]),
            "cont": torch.tensor([1.0, 1.0, 0.0, 0.0]),  # both successors end their episode
            "child": torch.tensor([2, 3, -1, -1]),
            "mask": torch.tensor([[True], [True], [False], [False]]),
            "logp": torch.zeros(4, 1),
        },
        torch.arange(2),
        stream="rl",
    )
    objective, ctx = QLearning(loss="cross_entropy"), context(models={"policy": policy, "target": target})
    live = evaluate(batch, objective.needs, ctx.models, ["policy"])
    loss, info = objective(batch.put(live), ctx)
    every = policy.module(batch["context"]).unflatten(-1, (3, 4)).detach()
    logits = torch.stack([every[0, 2], every[1, 0]])
    y = torch.tensor([0.5, 2.0])  # the second is beyond the range, and counts as at its end
    probs = torch.distributions.Normal(y[:, None], 0.75).cdf(torch.tensor([-2.0, -1, 0, 1, 2])).diff(dim=1)
    probs /= probs.sum(1, keepdim=True)
    torch.testing.assert_close(loss.detach(), -(probs * logits.log_softmax(1)).sum(1))
    torch.testing.assert_close(info["value"], logits.softmax(1) @ torch.tensor([-1.5, -0.5, 0.5, 1.5]))
    assert info["target"].tolist() == [0.5, 9.0]
    picked = policy(batch).at(torch.tensor([1]))
    torch.testing.assert_close(picked.logits().detach(), logits[1:])


def test_members_on_bins_are_fitted_each():
    """Behind an end the target is the reward; each member has its cross-entropy to the two centres next to it."""
    critic, target = ContinuousQ(2, (8,), bins=Bins(-2, 2, 4, 0.0)), ContinuousQ(2, (8,), bins=Bins(-2, 2, 4))
    box = SimpleNamespace(spaces=lambda: (spaces.Box(-9, 9, (2,)), spaces.Box(-1, 1, (1,))))
    policy = lambda batch: SimpleNamespace(mode=lambda: torch.zeros(len(batch), 1))  # noqa: E731
    for model in (critic, target):
        model.build(box)
        perturb(model, 0.5)
    whole = {
        "context": torch.randn(2, 2), "action": torch.zeros(2, 1), "reward": torch.tensor([[0.75], [0.0]]),
        "cont": torch.tensor([1.0, 0.0]), "child": torch.tensor([1, -1]), "mask": torch.tensor([[True], [False]]),
        "logp": torch.zeros(2, 1),
    }  # fmt: skip
    batch = Batch(whole, torch.arange(1), stream="rl")
    objective = SmoothedTD(loss="cross_entropy")
    ctx = context(models={"critic": critic, "target": target, "target_policy": policy})
    live = evaluate(batch, objective.needs, ctx.models, ["critic"])
    loss, info = objective(batch.put(live), ctx)
    logits = critic.module(torch.cat([batch["context"], batch["action"]], 1))[:, 0].detach()  # [n, m]
    share = torch.tensor([0.0, 0.0, 0.75, 0.25])  # of the centres -1.5, -0.5, 0.5, 1.5
    torch.testing.assert_close(loss.detach(), -(share * logits.log_softmax(1)).sum()[None])
    value = critic(batch).value()
    assert value.shape == (1, 1, 2) and float(info["target"]) == 0.75
    torch.testing.assert_close(info["value"], value.detach().mean(2)[0])


def test_value_regression_on_bins():
    bins, key = Bins(0, 2, 2, 0.0), Need(("critic",), "logits", live=True)
    critic = type("Critic", (), {"bins": bins})()
    columns = {"mask": torch.ones(1, 1, dtype=torch.bool), key.key: torch.zeros(1, 1, 2)}
    batch = Batch({**columns, "return": torch.tensor([[0.75]])})
    loss, info = Value(loss="cross_entropy")(batch, context(models={"critic": critic}))
    assert float(loss) == pytest.approx(torch.log(torch.tensor(2.0))) and float(info["value"]) == 1.0
    with pytest.raises(ValueError, match="clip"):
        Value(loss="cross_entropy", clip=0.2)


def test_a_critic_without_bins_says_so():
    with pytest.raises(ValueError, match="bins"):
        Values(torch.zeros(2, 1)).logits()

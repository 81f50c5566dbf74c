"""Quantiles of the return: the loss by hand, where it is least, and deep Q-learning on them."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from gymnasium import spaces

from shuhari.batch import Batch
from shuhari.models.critics import DiscreteQ
from shuhari.models.quantiles import Quantiles
from shuhari.models.readout import Bins
from shuhari.needs import evaluate
from shuhari.objectives.td import QLearning
from shuhari.testing import context
from shuhari.testing.models import perturb


def test_the_loss_by_hand():
    """Shares 1/4 and 3/4. Sample 3 is 3 above the first, 1 above the second; -0.5 is 0.5 and 2.5 below them."""
    loss = Quantiles(2).fit(torch.tensor([0.0, 2.0]), torch.tensor([3.0, -0.5]))
    first = (0.25 * 2.5 + 0.75 * 0.125) / 2
    second = (0.75 * 0.5 + 0.25 * 2.0) / 2
    assert float(loss) == pytest.approx(first + second)
    half = Quantiles(2, threshold=0.5).fit(torch.tensor([0.0, 2.0]), torch.tensor([3.0, -0.5]))
    first, second = (0.25 * 2.75 + 0.75 * 0.25) / 2, (0.75 * 0.75 + 0.25 * 2.25) / 2
    assert float(half) == pytest.approx(first + second)


def test_it_is_least_at_the_quantiles():
    """Of 0, 1, ..., 99 with errors that count by their size: a share of the samples is below each."""
    samples, found = torch.arange(100.0), torch.full((4,), 50.0, requires_grad=True)
    quantiles = Quantiles(4, threshold=1e-3)
    optimiser = torch.optim.SGD([found], 20.0)
    for step in range(400):
        optimiser.param_groups[0]["lr"] = 20.0 * (1 - step / 400)
        optimiser.zero_grad()
        quantiles.fit(found, samples).backward()
        optimiser.step()
    assert found.tolist() == pytest.approx([12.5, 37.5, 62.5, 87.5], abs=1.0)
    assert float(quantiles.value(found.detach())) == pytest.approx(50.0, abs=1.0)


READ = {"numbers": {}, "bins": {"bins": Bins(-9, 9, 4)}, "quantiles": {"quantiles": Quantiles(4)}}


def made(of):
    model = DiscreteQ((8,), **READ[of])
    model.build(SimpleNamespace(spaces=lambda: (spaces.Box(-9, 9, (2,)), spaces.Discrete(3))))
    perturb(model, 0.5)
    return model


def transitions():
    """Two decisions and their successors."""
    return Batch(
        {
            "context": torch.randn(4, 2, generator=torch.Generator().manual_seed(0)),
            "action": torch.tensor([2, 0, 0, 0]),
            "reward": torch.tensor([[0.5], [9.0], [0.0], [0.0]]),
            "cont": torch.tensor([1.0, 1.0, 1.0, 0.0]),  # the second successor ends its episode
            "child": torch.tensor([2, 3, -1, -1]),
            "mask": torch.tensor([[True], [True], [False], [False]]),
            "logp": torch.zeros(4, 1),
        },
        torch.arange(2),
        stream="rl",
    )


def learnt(loss, policy, target, double=False):
    """(loss, info) of deep Q-learning."""
    batch, objective = transitions(), QLearning(gamma=0.5, loss=loss, double=double)
    ctx = context(models={"policy": policy, "target": target})
    return objective(batch.put(evaluate(batch, objective.needs, ctx.models, ["policy"])), ctx)


@pytest.mark.parametrize("double", [False, True])
def test_deep_q_learning_fits_them_to_those_of_the_target(double):
    torch.manual_seed(0)
    policy, target = made("quantiles"), made("quantiles")
    loss, info = learnt("quantile", policy, target, double)
    batch = transitions()
    ours, theirs = (net.module(batch.whole["context"]).unflatten(-1, (3, 4)).detach() for net in (policy, target))
    best = int((ours if double else theirs)[2].mean(-1).argmax())
    samples = torch.stack([0.5 + 0.5 * theirs[2, best], torch.full((4,), 9.0)])
    mine = torch.stack([ours[0, 2], ours[1, 0]])
    torch.testing.assert_close(loss.detach(), Quantiles(4).fit(mine, samples))
    torch.testing.assert_close(info["value"], mine.mean(1))
    torch.testing.assert_close(info["target"], samples.mean(1))


@pytest.mark.parametrize("target", READ)
@pytest.mark.parametrize("policy", READ)
@pytest.mark.parametrize("loss", ["huber", "squared", "cross_entropy", "quantile"])
def test_a_loss_reads_what_it_is_of_or_says_what_is_missing(loss, policy, target):
    """A distribution over bins is of the trained net alone, the target gives numbers; quantiles are of both."""
    missing = {"cross_entropy": "bins" if policy != "bins" else "",
               "quantile": "quantiles" if {policy, target} != {"quantiles"} else ""}.get(loss, "")  # fmt: skip
    with pytest.raises(ValueError, match=rf"has none: set {missing} = ") if missing else nullcontext():
        found = learnt(loss, made(policy), made(target))[0]
        assert found.shape == (2,) and bool(found.isfinite().all())


def test_a_net_has_one_of_them():
    with pytest.raises(ValueError, match="one of them"):
        DiscreteQ(bins=Bins(-1, 1), quantiles=Quantiles())

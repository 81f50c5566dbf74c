"""The error of a model of the world by hand, plain and weighed: VaGraM where weights are 0, 1, of two signs, rescaled;
and what a model that has to choose keeps."""

import pytest
import torch

from shuhari.batch import Batch
from shuhari.models.dynamics import Prediction
from shuhari.objectives.model_error import ModelError
from shuhari.testing import context

AFTER = torch.tensor([[1.0, 2.0]])


def transition(**more):
    whole = {
        "mask": torch.tensor([[True], [False]]), "logp": torch.zeros(2, 1), "child": torch.tensor([1, -1]),
        "context": torch.cat([torch.zeros(1, 2), AFTER]), "action": torch.zeros(2, 1), "reward": torch.zeros(2, 1),
    }  # fmt: skip
    return Batch(whole).take(torch.tensor([0])).put(more)


def loss(errors, g=None, scale=1.0):
    """Of members that are wrong by these, and by 0.5 in the reward."""
    e = torch.tensor([errors])  # [1, n, D]
    world = lambda batch: Prediction(AFTER + e, torch.full(e.shape[:2], 0.5))  # noqa: E731
    batch = transition() if g is None else transition(value_gradient=scale * torch.tensor([g]))
    value, info = ModelError(weigh="" if g is None else "value_gradient")(batch, context(models={"world": world}))
    assert float(info["reward_error"]) == 0.25
    assert float(info["state_error"]) == pytest.approx(float(e.square().sum(-1).mean()))
    return float(value) - 0.25


def test_by_hand():
    assert loss([(0.0, 3.0)], [(1.0, 0.0)]) == 0  # the value does not look at dimension 2
    assert loss([(1.0, -2.0)], [(1.0, 1.0)]) == loss([(1.0, -2.0)]) == 5  # weights of 1 are maximum likelihood
    assert loss([(1.0, -1.0)], [(1.0, 1.0)]) == 2  # where a Taylor series of the value, (g e)^2, says 0
    assert loss([(1.0, -2.0), (0.0, 1.0)], [(1.0, 0.0), (0.0, 1.0)]) == pytest.approx((1 + 4 + 0 + 1) / 4)
    assert loss([(1.0, -2.0)], [(0.5, 1.0)], 3.0) == pytest.approx(9 * loss([(1.0, -2.0)], [(0.5, 1.0)]))


@pytest.mark.parametrize(("g", "keeps"), [((1.0, 0.0), 0), ((0.0, 1.0), 1)])
def test_a_model_of_rank_one_keeps_what_the_value_looks_at(g, keeps):
    """s' = W a with W of rank one cannot have both of two states that follow two actions."""
    torch.manual_seed(0)
    n, D = 64, 2
    action = torch.randn(n, 2)
    after = action.clone()  # dimension d is action d
    whole = {
        "mask": torch.tensor([[True]] * n + [[False]] * n), "logp": torch.zeros(2 * n, 1),
        "child": torch.cat([torch.arange(n, 2 * n), torch.full((n,), -1)]), "reward": torch.zeros(2 * n, 1),
        "context": torch.cat([torch.zeros(n, D), after]), "action": torch.cat([action, torch.zeros(n, 2)]),
    }  # fmt: skip
    batch = Batch(whole).take(torch.arange(n)).put({"value_gradient": torch.tensor(g).expand(n, 1, D)})
    into, out = torch.randn(2, 1, requires_grad=True), torch.randn(1, D, requires_grad=True)
    world = lambda b: Prediction((b["action"] @ into @ out)[:, None], torch.zeros(len(b), 1))  # noqa: E731
    optimiser = torch.optim.Adam([into, out], 0.05)
    for _ in range(300):
        optimiser.zero_grad()
        ModelError(weigh="value_gradient")(batch, context(models={"world": world}))[0].mean().backward()
        optimiser.step()
    wrong = (action @ into @ out - after).square().mean(0)
    assert float(wrong[keeps]) < 1e-3 and float(wrong[1 - keeps]) > 0.5

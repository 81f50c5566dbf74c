"""The gradient of a value at the true next state: of a quadratic by hand, clipped, where nothing follows, on one
stream; a critic is left as it was. And its plain rival, variances that are fitted."""

from types import SimpleNamespace

import torch
from torch import nn

from shuhari.batch import Batch
from shuhari.methods.control.vagram.fitted_variance import FittedVariance
from shuhari.methods.control.vagram.value_gradient import ValueGradient
from shuhari.models.dynamics import Prediction
from shuhari.objectives.model_error import ModelError
from shuhari.testing import check_transform, context


class Critic:
    """Two members: V = w_1 s_1^2 + a, and V = 3 s_2 + a, whose action is -s_2."""

    def __init__(self):
        self.module = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.module.weight)

    def __call__(self, batch):
        s, a = batch["context"], batch["action"][:, 0]
        value = torch.stack([self.module.weight[0, 0] * s[:, 0] ** 2 + a, 3 * s[:, 1] + a], 1)
        return SimpleNamespace(value=lambda: value[:, None])


class Policy:
    module = nn.Linear(1, 1)

    def __call__(self, batch):
        return SimpleNamespace(mode=lambda: -batch["context"][:, 1:])


def found(clip=1.0, **more):
    states = torch.tensor([[9.0, 9.0]] * 4 + [[1.0, 5.0], [-2.0, 0.0], [4.0, 1.0], [7.0, 7.0]])
    whole = {
        "mask": torch.tensor([[True]] * 4 + [[False]] * 4), "logp": torch.zeros(8, 1), "context": states,
        "child": torch.tensor([4, 5, 6, 7, -1, -1, -1, -1]), "action": torch.zeros(8, 1),
        "cont": torch.tensor([1.0] * 6 + [0.0, 1.0]),
        "weight/world": torch.tensor([[1.0]] * 3 + [[0.0]] * 5),
    }  # fmt: skip
    critic = Critic()
    batch = Batch(whole, stream="rl").take(torch.arange(4))
    out = check_transform(ValueGradient(clip, **more), batch, context(models={"policy": Policy(), "critic": critic}))
    assert critic.module.weight.grad is None
    return out["value_gradient"]


def test_of_a_quadratic_by_hand():
    g = found()
    # (2 s_1, -1) and (0, 3 - 1); the third is worth nothing behind its end, the fourth is of another stream
    assert g[:, 0].tolist() == [[2.0, -1.0], [-4.0, -1.0], [0.0, 0.0], [0.0, 0.0]]
    assert g[:, 1].tolist() == [[0.0, 2.0], [0.0, 2.0], [0.0, 0.0], [0.0, 0.0]]


def test_norms_are_held_to_a_quantile():
    g = found(clip=0.5)  # norms of the first member: sqrt 5, sqrt 17, 0; its median is sqrt 5
    torch.testing.assert_close(g[0, 0], torch.tensor([2.0, -1.0]))
    torch.testing.assert_close(g[1, 0], torch.tensor([-4.0, -1.0]) * (5 / 17) ** 0.5)


def test_shuffled_weights_are_the_same_in_any_order():
    g, shuffled = found(), found(shuffle=True)
    torch.testing.assert_close(shuffled.sort(-1).values, g.sort(-1).values)
    assert not torch.equal(shuffled, g)


def test_fitted_variances_are_maximum_likelihood():
    """The oracle is the negative log-likelihood of a normal at its best variances, differentiated by itself."""
    torch.manual_seed(0)
    table, n, D = nn.Embedding(8, 2 * 3), 6, 2  # of each row, by two members: a state and a reward

    class World:
        module = table

        def __call__(self, batch):
            said = table(batch["action"][:, 0].long()).unflatten(1, (2, D + 1))
            return Prediction(said[..., :D], said[..., D])

    whole = {
        "mask": torch.tensor([[True]] * 8 + [[False]] * 8), "logp": torch.zeros(16, 1),
        "child": torch.cat([torch.arange(8, 16), torch.full((8,), -1)]), "reward": torch.randn(16, 1),
        "context": torch.randn(16, D) * torch.tensor([1.0, 5.0]), "action": torch.arange(16.0)[:, None],
        "weight/world": torch.tensor([[1.0]] * n + [[0.0]] * 10),
    }  # fmt: skip
    batch, ctx = Batch(whole, stream="rl").take(torch.arange(8)), context(models={"world": World()})
    out = check_transform(FittedVariance(), batch, ctx)
    assert not out["fitted_variance"][n:].any()
    rows = out.take(torch.arange(n))
    (ours,) = torch.autograd.grad(ModelError(weigh="fitted_variance")(rows, ctx)[0].mean(), table.weight)
    true = torch.cat([whole["context"][8 : 8 + n], whole["reward"][:n]], -1)
    variance = (table.weight[:n].unflatten(1, (2, D + 1)) - true[:, None]).square().mean((0, 1))
    (nll,) = torch.autograd.grad(variance.log().sum() / 2, table.weight)
    torch.testing.assert_close(ours, 2 * variance[D].detach() * nll)

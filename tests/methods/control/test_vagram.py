"""The gradient of a value at the true next state: of a quadratic by hand, clipped, where nothing follows, on one
stream; a critic is left as it was."""

from types import SimpleNamespace

import torch
from torch import nn

from shuhari.batch import Batch
from shuhari.methods.control.vagram.value_gradient import ValueGradient
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

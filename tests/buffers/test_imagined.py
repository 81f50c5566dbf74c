"""Imagined transitions: a world that adds the action, by hand; shares, streams, successors, and members at random."""

from types import SimpleNamespace

import torch

from shuhari.batch import Batch
from shuhari.buffers.imagined import Imagined
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.models.dynamics import Prediction
from shuhari.testing import context


class Seen:
    """Two transitions, each with its successor behind it."""

    def wanted(self):
        return 5

    def draw(self, ctx):
        whole = {
            "context": torch.tensor([[1.0], [2.0], [10.0], [20.0]]), "action": torch.zeros(4, 1),
            "reward": torch.full((4, 1), 7.0), "mask": torch.tensor([[True], [True], [False], [False]]),
            "logp": torch.zeros(4, 1), "child": torch.tensor([2, 3, -1, -1]),
        }  # fmt: skip
        yield Batch(whole, torch.arange(2), stream="rl")


def imagine(**settings):
    policy = lambda batch: SimpleNamespace(rsample=lambda noise: (0.5 * batch["context"], None))  # noqa: E731

    def world(batch):  # two members: s + a, and s - a
        s, a = batch["context"], batch["action"]
        return Prediction(torch.stack([s + a, s - a], 1), torch.stack([s[:, 0], s[:, 0]], 1))

    ctx = context(
        models={"policy": policy, "world": world},
        noise=lambda batch, name: CounterNoise(keys(3, name, n=len(batch))),
    )
    buffer = Imagined(Seen(), **settings)
    assert buffer.wanted() == 5
    return next(iter(buffer.draw(ctx)))


def test_seen_and_imagined_rows():
    batch = imagine(horizon=2, real=0.5)
    assert batch["context"][:4, 0].tolist() == [1.0, 2.0, 1.0, 2.0]  # seen, then imagined from the same states
    assert batch["action"][2:].flatten().tolist() == (0.5 * batch["context"][2:, 0]).tolist()
    assert batch["reward"].flatten().tolist() == [7.0, 7.0, *batch["context"][2:, 0].tolist()]
    ahead = batch.successors()
    assert ahead["context"][:2, 0].tolist() == [10.0, 20.0]
    assert ahead["context"][2:4].tolist() == batch["context"][4:].tolist()  # the second step goes on from the first
    ratio = ahead["context"][2:, 0] / batch["context"][2:, 0]
    assert set(ratio.tolist()) <= {0.5, 1.5}  # one member or the other
    assert ahead["cont"][2:].tolist() == [1.0] * 4
    assert batch["id"].tolist() == [0, 1, -1, -1, -1, -1]
    assert batch.weight("rl").flatten().tolist() == [1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    assert batch.weight("world").flatten().tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]

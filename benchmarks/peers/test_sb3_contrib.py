"""Our TQC and batch renormalisation beside sb3-contrib's: targets, losses and gradients of quantile critics, and a
layer's output and gradient by its batch, in the warm-up and after it, and by running moments.

Axes: `B` rows, `n` critics, `m` quantiles.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from comparing import TOLERANCE
from sb3_contrib.common.torch_layers import BatchRenorm1d
from sb3_contrib.common.utils import quantile_huber_loss

from shuhari.batch import Batch
from shuhari.models.quantiles import Quantiles
from shuhari.models.renorm import EPSILON, Norm
from shuhari.needs import evaluate
from shuhari.objectives.td import SoftTD

B, GAMMA, ALPHA = 32, 0.97, 0.3


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def theirs(ours, after, reward, done, logp, drop):
    """(target atoms, loss) as the lines of `sb3_contrib.tqc.TQC.train` make them."""
    n, m = after.shape[1:]
    atoms, _ = torch.sort(after.reshape(len(after), -1))
    atoms = atoms[:, : n * m - drop * n] - ALPHA * logp.reshape(-1, 1)
    target = reward + (1 - done) * GAMMA * atoms
    return target, quantile_huber_loss(ours, target.unsqueeze(1), sum_over_quantiles=False)


@pytest.mark.parametrize(("n", "m", "drop"), [(2, 25, 2), (5, 25, 2), (1, 4, 0), (3, 5, 4)])
def test_tqc(n, m, drop):
    ours = (3 * drawn(B, n, m, seed=1)).requires_grad_()
    after, logp, reward = 3 * drawn(B, n, m, seed=2), drawn(B, seed=3), drawn(B, 1, seed=4)
    done = (drawn(B, 1, seed=5) > 1).float()

    def critic(z):
        return SimpleNamespace(quantiles=lambda: z[:, None], value=lambda: z[:, None].mean(-1))

    class Critic:
        quantiles = Quantiles(m)

        def __call__(self, batch):
            return critic(ours)

    models = {
        "critic": Critic(), "target": lambda batch: critic(after),
        "policy": lambda batch: SimpleNamespace(rsample=lambda noise: (torch.zeros(B, 1), logp[:, None])),
        "temperature": lambda batch: SimpleNamespace(value=lambda: torch.tensor(ALPHA)),
    }  # fmt: skip
    batch = Batch(
        {
            "context": torch.zeros(2 * B, 1),
            "action": torch.zeros(2 * B, 1),
            "reward": torch.cat([reward, torch.zeros(B, 1)]),
            "cont": torch.cat([torch.ones(B), 1 - done[:, 0]]),
            "child": torch.cat([torch.arange(B, 2 * B), torch.full((B,), -1)]),
            "mask": torch.arange(2 * B)[:, None] < B,
            "logp": torch.zeros(2 * B, 1),
        },
        torch.arange(B),
        stream="rl",
    )
    objective = SoftTD(gamma=GAMMA, loss="quantile", drop=drop)
    ctx = SimpleNamespace(models=models, at=lambda x: x, noise=lambda batch, name: None)
    loss, info = objective(batch.put(evaluate(batch, objective.needs, models, ["critic"])), ctx)
    mine = torch.autograd.grad(loss.mean() / (n * m), ours)[0]  # theirs is the mean over quantiles and critics, too
    target, other = theirs(ours, after, reward, done, logp, drop)
    torch.testing.assert_close(info["target"], target.mean(1), **TOLERANCE)
    torch.testing.assert_close(loss.mean() / (n * m), other, **TOLERANCE)
    torch.testing.assert_close(mine, torch.autograd.grad(other, ours)[0], **TOLERANCE)


@pytest.mark.parametrize("way", ["batch", "corrected", "running"])
def test_batch_renormalisation(way):
    """By running moments they are the same. By a batch theirs has the variance over B - 1, ours over B; after the
    warm-up theirs adds the constant of the root to the corrected variance, ours to the batch's: they are near each
    other."""
    size, x = 3, (2 * drawn(B, 3, seed=1) + 1).requires_grad_()
    peer, norm = BatchRenorm1d(size, eps=EPSILON, warmup_steps=-1 if way == "corrected" else 100), Norm(1, size)
    with torch.no_grad():
        for a, b, shift in ((peer.ra_mean, norm.mean, 0.5), (peer.bias, norm.shift, 0.0), (peer.ra_var, norm.var, 1.0),
                            (peer.scale, norm.scale, 0.0)):  # fmt: skip
            a += shift + 0.2 * drawn(size, seed=7).abs()
            b.copy_(a.view_as(b))
    peer.train(way != "running")
    other = peer(x)
    found = norm(x[None], None if way == "running" else [], corrects=way == "corrected")[0]
    tolerance = {"atol": 0.03, "rtol": 0.03} if way != "running" else TOLERANCE  # of B - 1, and of the constant
    torch.testing.assert_close(found, other, **tolerance)
    weight = drawn(B, size, seed=9)
    ours, other = (torch.autograd.grad((y * weight).sum(), x)[0] for y in (found, other))
    torch.testing.assert_close(ours, other, **tolerance)

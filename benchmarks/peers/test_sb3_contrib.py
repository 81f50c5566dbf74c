"""Our TQC, quantile loss and batch renormalisation beside sb3-contrib's: targets, losses and gradients of quantile
critics, and a layer's output and gradient by its batch, in the warm-up and after it, and by running moments. Whole
updates of QR-DQN and CrossQ are in `test_sb3_losses`.

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


@pytest.mark.parametrize(("m", "n"), [(51, 51), (4, 7), (1, 3)])
def test_quantile_loss(m, n):
    """Of QR-DQN: m quantiles against n samples, summed over the quantiles."""
    z, y = (3 * drawn(B, m, seed=1)).requires_grad_(), 3 * drawn(B, n, seed=2)
    found, other = Quantiles(m).fit(z, y).mean(), quantile_huber_loss(z, y, sum_over_quantiles=True)
    torch.testing.assert_close(found, other, **TOLERANCE)
    torch.testing.assert_close(*(torch.autograd.grad(x, z)[0] for x in (found, other)), **TOLERANCE)


@pytest.mark.parametrize("way", ["batch", "corrected", "running"])
def test_batch_renormalisation(way):
    """Theirs has the variance over B - 1, which is `k` times ours: with its constant and running variance `k` times as
    large, too, its output is smaller by the root of k. After the warm-up it also adds the constant to the corrected
    variance v / r², where ours adds it to v, as the paper does. Two columns are past the bounds of the correction."""
    k, size = (B / (B - 1) if way != "running" else 1.0), 3
    x = ((2 * drawn(B, size, seed=1) + 1) * torch.tensor([0.1, 1.0, 12.0])).requires_grad_()
    peer = BatchRenorm1d(size, eps=k * EPSILON, warmup_steps=-1 if way == "corrected" else 100, affine=False)
    norm, most, shift = Norm(1, size), peer.rmax, peer.dmax  # theirs are 3 and 5
    peer.dmax = shift / k**0.5
    with torch.no_grad():
        for i, to in enumerate((norm.mean, norm.var, norm.scale, norm.shift)):
            to += 0.2 * drawn(size, seed=7 + i).abs()
        peer.ra_mean.copy_(norm.mean.view(-1))
        peer.ra_var.copy_(k * norm.var.view(-1))
    peer.train(way != "running")
    other = k**0.5 * peer(x)
    if way == "corrected":
        v, mean = torch.var_mean(x, 0, correction=0)
        std, own = (norm.var.view(-1) + EPSILON).sqrt(), (v + EPSILON).sqrt()
        r = (own / std).detach().clamp(1 / most, most)
        d = ((mean - norm.mean.view(-1)) / std).detach().clamp(-shift, shift)
        assert r[0] == 1 / most and r[2] == most and d[2] == shift
        other = (other * (v + EPSILON * r**2).sqrt() - d * v.sqrt()) / own + d
    other = (other * norm.scale + norm.shift)[0]
    found = norm(x[None], None if way == "running" else [], corrects=way == "corrected")[0]
    torch.testing.assert_close(found, other, **TOLERANCE)
    weight = drawn(B, size, seed=9)
    ours, other = (torch.autograd.grad((y * weight).sum(), x, retain_graph=True)[0] for y in (found, other))
    torch.testing.assert_close(ours, other, **TOLERANCE)

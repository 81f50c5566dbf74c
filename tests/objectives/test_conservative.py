"""CQL: the gradient by enumeration, the sampled integral against the exact one, the floor of Cal-QL by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shuhari import testing
from shuhari.batch import Batch
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.needs import evaluate
from shuhari.objectives.conservative import Conservative, ConservativeSampled


def context(**models):
    return testing.context(models=models, noise=lambda batch, name: CounterNoise(keys(3, name, n=len(batch))))


def transitions(action, **more):
    n = len(action)
    columns = {
        "context": torch.zeros(2 * n, 1), "action": torch.cat([torch.tensor(action), torch.tensor(action) * 0]),
        "reward": torch.zeros(2 * n, 1), "cont": torch.ones(2 * n),
        "child": torch.tensor([*range(n, 2 * n), *[-1] * n]), "mask": torch.tensor([[True]] * n + [[False]] * n),
        **{k: torch.tensor([*v, *v])[:, None] for k, v in more.items()},
    }  # fmt: skip
    return Batch(columns, torch.arange(n), stream="rl")


def asked(objective, batch, ctx):
    return objective(batch.put(evaluate(batch, objective.needs, ctx.models, [objective.role])), ctx)


@pytest.mark.parametrize("t", [0.5, 1.0, 3.0])
def test_the_gradient_is_the_soft_policy_less_the_recorded_action(t: float) -> None:
    q = torch.tensor([[1.0, -2.0, 0.5], [0.0, 4.0, 1.0]], requires_grad=True)
    taken = [2, 0]
    model = lambda batch: SimpleNamespace(  # noqa: E731
        all=lambda: q[:, None], value=lambda: q.gather(1, batch["action"][:, None])
    )
    model.module = None
    loss, info = asked(Conservative(temperature=t), transitions(taken), context(policy=model))
    exact = [t * math.log(sum(math.exp(x / t) for x in row)) - row[a] for row, a in zip(q.tolist(), taken, strict=True)]
    assert loss.tolist() == pytest.approx(exact) and info["gap"].tolist() == pytest.approx(exact)
    loss.sum().backward()
    soft = [[math.exp(x / t) / sum(math.exp(y / t) for y in row) for x in row] for row in q.tolist()]
    expected = np.array(soft) - np.eye(3)[taken]
    np.testing.assert_allclose(q.grad.numpy(), expected, atol=1e-6)


class Linear:
    """Members worth slope · sum of the action, each."""

    def __init__(self, slopes):
        self.slopes = torch.tensor(slopes, requires_grad=True)
        self.module = None

    def __call__(self, batch):
        value = batch["action"].sum(1)[:, None] * self.slopes
        return SimpleNamespace(value=lambda: value[:, None])


def uniform_policy(batch):
    """Decisions uniform in [-1, 1]² at the rows of a batch, with their density."""

    def rsample(noise):
        a = 2 * noise.uniform(1, 2).float() - 1
        return a, torch.full((len(a), 1), -2 * math.log(2))

    return SimpleNamespace(rsample=rsample)


def test_samples_stand_for_the_integral_over_decisions() -> None:
    """Of a linear Q of two dimensions log of the integral of exp Q is 2 log(2 sinh(c) / c); the code's sum has the
    logarithm of the number of samples on top."""
    ctx, m, slopes = context(critic=Linear([0.7, 2.0]), policy=uniform_policy), 4000, (0.7, 2.0)
    loss, _ = asked(ConservativeSampled(samples=m), transitions([[0.3, -0.1], [0.0, 1.0]]), ctx)
    whole = sum(2 * math.log(2 * math.sinh(c) / c) + math.log(3 * m) for c in slopes)
    exact = [whole - sum(c * a for c in slopes) for a in (0.2, 1.0)]
    assert loss.tolist() == pytest.approx(exact, abs=0.08)


def test_noise_of_a_row_is_its_own_and_the_policy_takes_no_gradient() -> None:
    seen = []

    def policy(batch):
        scale = torch.ones(1, requires_grad=True)

        def rsample(noise):
            a = (noise.normal(0, 2) * scale).tanh()
            seen.append(a.detach())
            return a, (a.sum(1, keepdim=True) * scale)

        return SimpleNamespace(rsample=rsample)

    critic = Linear([1.0])
    ctx = context(critic=critic, policy=policy)
    loss, _ = asked(ConservativeSampled(samples=3), transitions([[0.0, 0.0]] * 4), ctx)
    drawn = torch.stack(seen, 1)  # [B, 2 m, A]
    assert drawn.shape == (4, 6, 2) and len(drawn.flatten(0, 1).unique(dim=0)) == 24
    loss.sum().backward()
    assert critic.slopes.grad is not None


def test_the_floor_of_cal_ql_by_hand() -> None:
    """One sample of each kind; the policy's lie at (.5, .5) with density e². Row 0 has a floor above, row 1 one below,
    of row 2 nothing is known."""
    fixed = torch.tensor([[0.5, 0.5]])
    policy = lambda batch: SimpleNamespace(  # noqa: E731
        rsample=lambda noise: (fixed.expand(len(batch), 2), torch.full((len(batch), 1), 2.0))
    )
    critic = Linear([2.0])
    ctx, batch = context(critic=critic, policy=policy), transitions([[0.0, 0.0]] * 3, to_go=[5.0, 1.0, math.nan])
    objective = ConservativeSampled(samples=1, floor="to_go")
    loss, info = asked(objective, batch, ctx)
    uniform = 2 * ctx.noise(batch, "uniform").uniform(0, 1, 2)[:, 0].float() - 1
    at_uniform = 2 * uniform.sum(1) + 2 * math.log(2)
    bounded = zip(at_uniform, (5.0, 2.0, 2.0), strict=True)
    exact = [float(torch.tensor([u, x - 2, x - 2]).logsumexp(0)) for u, x in bounded]
    assert loss.tolist() == pytest.approx(exact) and info["floored"].tolist() == [1.0, 0.0, 0.0]
    plain, _ = asked(ConservativeSampled(samples=1), batch, ctx)
    assert plain.tolist()[1:] == pytest.approx(exact[1:]) and plain.tolist()[0] < exact[0]
    (g,) = torch.autograd.grad(loss[0], critic.slopes)
    share = float((at_uniform[0] - loss[0].detach()).exp())  # what is floored is pushed no further
    assert float(g) == pytest.approx(share * float(uniform[0].sum()), abs=1e-5)

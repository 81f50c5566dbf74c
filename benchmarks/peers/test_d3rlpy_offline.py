"""Our AWAC weights and ReBRAC losses beside those of d3rlpy, on the same values, actions and noise, to 1e-5."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from d3rlpy.algos.qlearning.torch import awac_impl
from d3rlpy.algos.qlearning.torch.rebrac_impl import ReBRACImpl

from shuhari.batch import Batch
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.needs import evaluate
from shuhari.objectives.deterministic_bc import DeterministicBC
from shuhari.objectives.td import SmoothedTD
from shuhari.testing import context
from shuhari.transforms.action_advantage import ActionAdvantage
from shuhari.transforms.weigh import Weigh

N, S, A, GAMMA = 32, 3, 2, 0.95
MIX = torch.randn(2, S + A, generator=torch.Generator().manual_seed(7))


def values(seen, action):
    """[B, 2] two members of a critic."""
    x = torch.cat([seen, action], 1)
    return torch.stack([torch.tanh(x @ MIX[0]) * 3, (x @ MIX[1]).square()], 1)


def critic(batch):
    return SimpleNamespace(value=lambda: values(batch["context"], batch["action"])[:, None])


def mean_of(seen, weight=None):
    return torch.tanh(seen[:, :A] * (torch.tensor([0.7, -1.2]) if weight is None else weight))


class Policy:
    """A normal policy of deviation 0.3, whose mode is its mean."""

    module = None

    def __init__(self, weight=None):
        self.weight = weight

    def __call__(self, batch):
        mean = mean_of(batch["context"], self.weight)
        draw = lambda noise: (mean + 0.3 * noise.normal(0, A), torch.zeros(len(mean), 1))  # noqa: E731
        return SimpleNamespace(mode=lambda: mean, rsample=draw)


critic.module = None


class Theirs:
    """A forwarder of d3rlpy over the same critic."""

    def compute_expected_q(self, seen, action, reduction="min"):
        return values(seen, action).min(1, keepdim=True).values

    compute_target = compute_expected_q


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(1)
    decides = torch.ones(N + 1, dtype=torch.bool)
    decides[N] = False
    return Batch({
        "context": torch.randn(N + 1, S, generator=g), "action": torch.rand(N + 1, A, generator=g) * 2 - 1,
        "reward": torch.randn(N + 1, 1, generator=g), "cont": torch.ones(N + 1), "mask": decides[:, None],
        "child": torch.where(decides, torch.arange(1, N + 2), -1),
    }, torch.arange(N - 1), stream="rl")  # fmt: skip


def ctx_of(**models):
    return context(models=models, noise=lambda batch, name: CounterNoise(keys(3, name, n=len(batch))))


@pytest.mark.parametrize(("lam", "samples"), [(1.0, 1), (0.5, 4)])
def test_awacs_weights(batch, lam, samples, monkeypatch):
    ctx = ctx_of(policy=Policy(), critic=critic)
    stamped = Weigh(temperature=lam, most=float("inf"), stream="awr")(ActionAdvantage(samples=samples)(batch, ctx), ctx)
    ours = stamped.weight("awr")[:, 0]
    mean = mean_of(batch["context"])
    drawn = torch.stack([mean + 0.3 * ctx.noise(batch, f"a{i}").normal(0, A) for i in range(samples)], 1)  # [B, n, A]
    monkeypatch.setattr(awac_impl, "build_gaussian_distribution", lambda _: SimpleNamespace(sample_n=lambda n: drawn))
    impl = SimpleNamespace(_q_func_forwarder=Theirs(), _modules=SimpleNamespace(policy=lambda seen: None),
                           _n_action_samples=samples, action_size=A, _lam=lam)  # fmt: skip
    theirs = awac_impl.AWACImpl._compute_weights(impl, batch["context"], batch["action"])[:, 0]
    torch.testing.assert_close(ours / ours.mean(), theirs, rtol=1e-5, atol=1e-5)  # theirs have a mean of 1


@pytest.mark.parametrize("beta", [0.01, 0.8])
def test_rebracs_target(batch, beta, monkeypatch):
    ctx = ctx_of(critic=critic, target=critic, target_policy=Policy())
    objective = SmoothedTD(gamma=GAMMA, noise=0.2, clip=0.25, penalty=beta)
    _, info = objective(batch.put(evaluate(batch, objective.needs, ctx.models, ["critic"])), ctx)
    noise = ctx.noise(batch, "next").normal(0, A)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: noise)
    policy = lambda seen: SimpleNamespace(mu=mean_of(seen), squashed_mu=mean_of(seen))  # noqa: E731
    impl = SimpleNamespace(_modules=SimpleNamespace(targ_policy=policy), _targ_q_func_forwarder=Theirs(),
                           _target_smoothing_sigma=0.2, _target_smoothing_clip=0.25, _critic_beta=beta)  # fmt: skip
    ahead = batch.successors()
    given = SimpleNamespace(next_observations=ahead["context"], next_actions=ahead["action"], device="cpu")
    theirs = batch["reward"][:, 0] + GAMMA * ReBRACImpl.compute_target(impl, given)[:, 0]
    torch.testing.assert_close(info["target"], theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("beta", [0.01, 0.8])
def test_rebracs_policy_loss_and_gradient(batch, beta):
    ours, theirs = (torch.tensor([0.7, -1.2], requires_grad=True) for _ in range(2))
    ctx = ctx_of(policy=Policy(ours), critic=critic)
    objective = DeterministicBC(alpha=1 / (beta * A), over="min")
    loss, _ = objective(batch.put(evaluate(batch, objective.needs, ctx.models, ["policy"])), ctx)
    value = beta * A * loss.mean()
    value.backward()
    impl = SimpleNamespace(_q_func_forwarder=Theirs(), _actor_beta=beta)
    given = SimpleNamespace(observations=batch["context"], actions=batch["action"])
    action = SimpleNamespace(squashed_mu=mean_of(batch["context"], theirs))
    their_loss = ReBRACImpl.compute_actor_loss(impl, given, action).actor_loss
    their_loss.backward()
    torch.testing.assert_close(value, their_loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5)

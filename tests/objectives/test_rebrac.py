"""ReBRAC as settings: the critics' target less a distance to the next recorded action, and the policy's loss up to a
factor, both by the published formulas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shuhari import testing
from shuhari.batch import Batch
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.needs import evaluate
from shuhari.objectives.deterministic_bc import DeterministicBC
from shuhari.objectives.td import SmoothedTD

A, GAMMA = 2, 0.9


def context(**models: Any) -> Any:
    return testing.context(models=models, noise=lambda batch, name: CounterNoise(keys(3, name, n=len(batch))))


def two(batch: Batch) -> Any:
    """Critics Q1 = s + a1, Q2 = s · a2."""
    a, s = batch["action"], batch["context"][:, 0]
    return SimpleNamespace(value=lambda: torch.stack([s + a[:, 0], s * a[:, 1]], 1)[:, None])


def mover(batch: Batch) -> Any:
    return SimpleNamespace(mode=lambda: torch.tanh(batch["context"] * torch.tensor([1.0, -0.5])))


two.module = mover.module = None  # type: ignore[attr-defined]


def chain() -> Batch:
    """Two episodes of two decisions: the first ends by itself, the second was cut."""
    torch.manual_seed(1)
    decides = torch.tensor([True, True, False] * 2)
    return Batch({
        "context": torch.randn(6, 1), "action": torch.where(decides[:, None], torch.rand(6, A) * 2 - 1, 0.0),
        "reward": torch.where(decides, torch.randn(6), 0.0)[:, None], "mask": decides[:, None],
        "cont": torch.tensor([1.0, 1, 0, 1, 1, 1]), "child": torch.tensor([1, 2, -1, 4, 5, -1]),
    }, torch.tensor([0, 1, 3, 4]), stream="rl")  # fmt: skip


@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_the_target_by_hand(beta: float) -> None:
    batch, ctx = chain(), context(critic=two, target=two, target_policy=mover)
    objective = SmoothedTD(gamma=GAMMA, noise=0.2, clip=0.3, penalty=beta)
    _, info = objective(batch.put(evaluate(batch, objective.needs, ctx.models, ["critic"])), ctx)
    whole, ahead = batch.whole, batch["child"]
    s = whole["context"][ahead]
    noise = (0.2 * ctx.noise(batch, "next").normal(0, A)).clamp(-0.3, 0.3)
    a = (torch.tanh(s * torch.tensor([1.0, -0.5])) + noise).clamp(-1, 1)
    q = torch.minimum(s[:, 0] + a[:, 0], s[:, 0] * a[:, 1])
    away = (a - whole["action"][ahead]).square().sum(1)
    away[1] = away[3] = 0.0  # nothing was recorded after the last decision, ended or cut
    y = batch["reward"][:, 0] + GAMMA * whole["cont"][ahead] * (q - beta * away)
    torch.testing.assert_close(info["target"], y)


def test_the_policys_loss_is_theirs_over_beta_and_the_dimensions() -> None:
    batch, beta = chain(), 0.4
    weight = torch.tensor([1.0, -0.5], requires_grad=True)
    policy: Any = lambda b: SimpleNamespace(mode=lambda: torch.tanh(b["context"] * weight))  # noqa: E731
    policy.module = None
    ctx = context(policy=policy, critic=two)
    objective = DeterministicBC(alpha=1 / (beta * A), over="min")
    loss, info = objective(batch.put(evaluate(batch, objective.needs, ctx.models, ["policy"])), ctx)
    (ours,) = torch.autograd.grad(loss.mean() * beta * A, weight)
    s = batch["context"]
    a = torch.tanh(s * weight)
    q = torch.minimum(s[:, 0] + a[:, 0], s[:, 0] * a[:, 1])
    theirs = beta * (a - batch["action"]).square().sum(1) - q / q.detach().abs().mean()
    torch.testing.assert_close(loss * beta * A, theirs)
    torch.testing.assert_close(ours, torch.autograd.grad(theirs.mean(), weight)[0])
    torch.testing.assert_close(info["q"], q.detach())

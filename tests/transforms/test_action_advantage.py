"""The advantage over the policy's own actions, by hand; and AWAC's loss, put together of it, weights and likelihood."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shuhari import testing
from shuhari.batch import Batch
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.transforms.action_advantage import ActionAdvantage
from shuhari.transforms.weigh import Weigh

B, A = 6, 2


class Normal:
    """A policy of mean twice the context and deviation 1/2, as `Gaussian` answers."""

    module = torch.nn.Identity()

    def __call__(self, batch: Batch) -> Any:
        mean, action = 2 * batch["context"], batch["action"]

        def rsample(noise: Any) -> Any:
            a = mean + 0.5 * noise.normal(0, A)
            return a, torch.zeros(len(a), 1)

        logp = torch.distributions.Normal(mean, 0.5).log_prob(action).sum(1, keepdim=True)
        return SimpleNamespace(rsample=rsample, log_prob=lambda: logp)


def critic(batch: Batch) -> Any:
    """Two members: Q1 = sum a, Q2 = 1 - sum of squares."""
    a = batch["action"]
    return SimpleNamespace(value=lambda: torch.stack([a.sum(1), 1 - a.square().sum(1)], 1)[:, None])


critic.module = torch.nn.Identity()  # type: ignore[attr-defined]


def made() -> tuple[Batch, Any]:
    torch.manual_seed(0)
    mask = torch.tensor([[True]] * (B - 1) + [[False]])
    batch = Batch({"context": torch.randn(B, A) / 3, "action": torch.randn(B, A), "mask": mask}, stream="rl")
    noise = lambda batch, name: CounterNoise(keys(5, name, n=len(batch)))  # noqa: E731
    return batch, testing.context(models={"policy": Normal(), "critic": critic}, noise=noise)


def smallest(a: torch.Tensor) -> torch.Tensor:
    return torch.minimum(a.sum(1), 1 - a.square().sum(1))


@pytest.mark.parametrize("samples", [1, 3])
def test_by_hand(samples: int) -> None:
    batch, ctx = made()
    own = [2 * batch["context"] + 0.5 * ctx.noise(batch, f"a{i}").normal(0, A) for i in range(samples)]
    expected = smallest(batch["action"]) - sum(map(smallest, own)) / samples
    found = ActionAdvantage(samples=samples)(batch, ctx)["advantage"][:, 0]
    torch.testing.assert_close(found, torch.where(batch["mask"][:, 0], expected, 0.0))
    assert found[-1] == 0
    first = ActionAdvantage(samples=samples, over="first")(batch, ctx)["advantage"][:, 0]
    gap = batch["action"].sum(1) - sum(a.sum(1) for a in own) / samples
    torch.testing.assert_close(first, torch.where(batch["mask"][:, 0], gap, 0.0))


def test_many_samples_are_the_mean_over_the_policy() -> None:
    """E over the policy of 1 - |a|² is 1 - |mean|² - A / 4."""
    batch, ctx = made()
    drawn = ActionAdvantage(samples=4_000, over="mean")(batch, ctx)["advantage"][:-1, 0]
    mean = 2 * batch["context"][:-1]
    value = (mean.sum(1) + 1 - mean.square().sum(1) - A / 4) / 2
    a = batch["action"][:-1]
    torch.testing.assert_close(drawn, (a.sum(1) + 1 - a.square().sum(1)) / 2 - value, atol=0.05, rtol=0)


def test_awacs_loss_put_together() -> None:
    """-log pi(a|s) min(exp(A / lambda), 100), as the published algorithm 1 and CORL have it."""
    batch, ctx = made()
    lam = 0.7
    stamped = Weigh(temperature=lam, most=100.0, stream="awr")(ActionAdvantage()(batch, ctx), ctx)
    logp = Normal()(batch).log_prob()[:, 0]
    ours = (stamped.weight("awr")[:, 0] * -logp).tolist()
    drawn = 2 * batch["context"] + 0.5 * ctx.noise(batch, "a0").normal(0, A)
    gap = (smallest(batch["action"]) - smallest(drawn)).tolist()
    theirs = [-float(x) * min(math.exp(g / lam), 100.0) for x, g in zip(logp, gap, strict=True)]
    assert ours[:-1] == pytest.approx(theirs[:-1], rel=1e-5) and ours[-1] == 0


def test_it_keeps_to_its_port() -> None:
    batch, ctx = made()
    testing.check_transform(ActionAdvantage(), batch, ctx)

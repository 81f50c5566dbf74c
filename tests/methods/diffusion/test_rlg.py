"""Guidance between two chains, on Gaussians whose velocities are known, and against the models that it mixes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from shuhari.batch import Batch
from shuhari.data import Sampling
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.methods.diffusion.rlg.guided import Guided
from shuhari.models.chain import ChainPolicy
from shuhari.models.schedules import flow_schedule
from shuhari.needs import Traces

SEEN, DOES = spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-1.0, 1.0, (2,))
STEPS = 200


class Exact:
    """A flow whose velocity is that of decisions N(mean, 1), one dimension."""

    steps, single, bound, dimensions = STEPS, False, 0.0, 1

    def __init__(self, mean: float, level: float | None) -> None:
        self.mean, self.schedule = mean, flow_schedule(STEPS, level)

    def features(self, seen: Tensor) -> Tensor:
        return seen

    def answer(self, features: Tensor, x: Tensor, k: int) -> Tensor:
        t = k / STEPS
        return self.mean + (2 * t - 1) / (t * t + (1 - t) ** 2) * (x - t * self.mean)

    def spread_of(self, features: Tensor, x: Tensor, k: int) -> Tensor:
        return torch.zeros_like(x)

    def trace(self, chain: Tensor, action: Tensor, steps: Any) -> Traces:
        return Traces(action, steps.log_prob(), info={}, taken=None)


def guided(weight: float, base: Any, policy: Any, **more: Any) -> Any:
    model = Guided(weight=weight, **more)
    model.build(None)  # type: ignore[arg-type]
    model.bind({"base": base, "policy": policy})
    return model


def chain(seed: int, **settings: Any) -> Any:
    torch.manual_seed(seed)
    model = ChainPolicy(hidden=(16,), **settings)
    model.build(SimpleNamespace(spaces=lambda: (SEEN, DOES)))  # type: ignore[arg-type]
    return model


@pytest.mark.parametrize("level", [None, 0.7])
@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0, 2.0])
def test_between_gaussians_the_weight_divides_beta(weight: float, level: float | None) -> None:
    """N(0, 1) tilted by e^a is N(1, 1), and by e^(w a) N(w, 1), whether the steps have noise or not."""
    model = guided(weight, Exact(0.0, level), Exact(1.0, level))
    n = 20_000
    sampling = Sampling(greedy=level is None)
    points = model.sample(torch.zeros(n, 1), sampling, noise=CounterNoise(keys(1, n=n))).action
    assert float(points.mean()) == pytest.approx(weight, abs=0.04)
    assert float(points.std()) == pytest.approx(1.0, abs=0.04)


@pytest.mark.parametrize("settings", [{"law": "noise"}, {"law": "sde", "single": True}, {"law": "ddpm"}])
def test_at_0_and_1_it_is_either_model_to_the_bit(settings: dict[str, Any]) -> None:
    base, policy = chain(0, **settings), chain(1, **settings)
    if settings["law"] == "noise":  # the noise is the tuned policy's
        base.module.spread.load_state_dict(policy.module.spread.state_dict())
    seen = torch.randn(7, 3)
    for weight, alone in ((0.0, base), (1.0, policy)):
        both = guided(weight, base, policy), alone
        one, two = (m.sample(seen, Sampling(), noise=CounterNoise(keys(1, n=7))) for m in both)
        assert torch.equal(one.action, two.action) and torch.equal(one.taken, two.taken)
        assert torch.equal(one.info["chain"], two.info["chain"])
        torch.testing.assert_close(one.logp, two.logp)


def test_answers_of_the_same_point_are_mixed_after_the_first_steps() -> None:
    base, policy = chain(0, law="ddpm"), chain(1, law="ddpm")
    model = guided(1.5, base, policy, after=2)
    seen = torch.randn(5, 3)
    traces = model.sample(seen, Sampling(), noise=CounterNoise(keys(1, n=5)))
    mask = torch.ones(5, 4, dtype=torch.bool)
    batch = Batch({"mask": mask, "context": seen, "action": traces.action, **traces.info})
    u, of_base, of_policy = (m(batch).parameters() for m in (model, base, policy))
    torch.testing.assert_close(u[:, 2:], (1.5 * of_policy - 0.5 * of_base)[:, 2:])
    assert torch.equal(u[:, :2], of_policy[:, :2])
    torch.testing.assert_close(model(batch).log_prob(), traces.logp, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("other", [{"steps": 3}, {"law": "sde"}, {"law": "noise", "bound": 1.0}])
def test_other_steps_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="'base' and 'policy' denoise in other steps"):
        guided(1.5, chain(0), chain(1, **other))

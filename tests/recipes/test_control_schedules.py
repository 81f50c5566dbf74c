"""Schedules of the control recipes follow the budget that the stage has."""

from __future__ import annotations

import pytest

from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.kernel.ramp import Count

RATES = {
    "ppo_cartpole": 2e-3,
    "ppo_hidden_cartpole": 2e-3,
    "recurrent_ppo_cartpole": 2e-3,
    "ppo_taxi": 2.5e-3,
    "ppo_minigrid": 1e-3,
    "ppo_double_pendulum": 3e-4,
    "dqn_cartpole": 1e-3,
}


@pytest.mark.parametrize("name", RATES)
def test_the_rate_falls_to_0_over_whatever_budget_there_is(name: str) -> None:
    whole = 4000
    (table,) = load(f"baselines/{name}", [f"env_steps={whole}"]).stages
    rate = build_stage(table).learners["main"].parts["policy"].optimiser.lr
    for share in (0.0, 0.5, 0.75, 1.0):
        at = Count(3, share * whole, whole, in_steps=False)
        assert rate(at) == pytest.approx((1 - share) * RATES[name])


def test_exploration_of_dqn_ends_after_15_hundredths() -> None:
    (table,) = load("baselines/dqn_cartpole", ["env_steps=2000"]).stages
    epsilon = build_stage(table).sampling.epsilon
    found = [epsilon(Count(3, spent, 2000, in_steps=False)) for spent in (0, 150, 300, 2000)]
    assert found == pytest.approx([1.0, 0.52, 0.04, 0.04])

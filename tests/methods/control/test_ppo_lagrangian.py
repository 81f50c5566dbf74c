"""PPO-Lagrangian as its recipe says it: how fast its price moves, and what it sets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from built import POLICY, built, holds
from shuhari.objectives.clip import Clip
from shuhari.objectives.dual import Dual


def test_what_it_sets() -> None:
    """PPO on advantages less those of the cost at its price, over 1 + the price; the cost's critic learns beside."""
    critic, price = "learners.main.parts.critic", "learners.main.parts.multiplier"
    transform = "learners.main.transforms"
    stage = holds(
        "control/ppo_lagrangian",
        {
            f"{POLICY}.terms.loss.objective": Clip(low=0.2, high=0.2),
            f"{POLICY}.terms.entropy.weight": 0.02,
            f"{POLICY}.epochs": 10,
            f"{POLICY}.minibatches": 4,
            f"{transform}.constrain.limit": 9.5,
            f"{transform}.constrain.share": True,
            f"{transform}.constrain.multiplier": "multiplier",
            f"{transform}.cost_gae.gamma": 0.99,
            f"{critic}.trains": ("critic", "cost_critic"),
            f"{critic}.terms.cost.objective.target": "cost_return",
            f"{price}.terms.dual.objective": Dual(),
            "models.multiplier.model.initial": 1.0,
        },
    )
    assert stage.task.tells == {"cost": "reward"}  # type: ignore[attr-defined]


class Excess:
    """A loss -log(nu) x excess of one parameter, log(nu)."""

    def __init__(self, log: nn.Parameter, excess: float) -> None:
        self.log, self.excess = log, excess

    def backward(self) -> dict[str, float]:
        (-self.log * self.excess).sum().backward()
        return {}


@pytest.mark.parametrize("excess", [1.0, -1.0, 0.1, 1000.0])
def test_the_price_moves_by_a_fiftieth_a_unit_of_excess_and_at_most_by_its_rate(excess: float) -> None:
    """Adam's first step on -excess: 0.2 excess / (|excess| + 10), about 0.02 a unit, 0.2 far beyond."""
    optimiser: Any = built("control/ppo_lagrangian").learners["main"].parts["multiplier"].optimiser  # type: ignore[attr-defined]
    log = nn.Parameter(torch.zeros(1))
    optimiser.bind([log])
    optimiser.step(Excess(log, excess), 0)
    assert float(log) == pytest.approx(0.2 * excess / (abs(excess) + 10), rel=1e-4)

"""CPO as its recipe says it: one step a batch, of the trust region; the step is tested with the optimiser."""

from __future__ import annotations

from math import inf

from built import POLICY, holds
from shuhari.objectives.clip import Clip
from shuhari.objectives.constrained import Constraint
from shuhari.objectives.divergence import Divergence


def test_numbers_of_the_paper() -> None:
    """One step on the whole batch, of the reward without a clip, within a bound of the KL and a limit on the cost, of
    which there is no price."""
    step = {"method": "cpo", "bound": 0.01, "damping": 0.1, "iterations": 10, "tries": 15, "shrink": 0.8}
    stage = holds(
        "control/cpo",
        {
            **{f"{POLICY}.optimiser.{k}": v for k, v in step.items()},
            f"{POLICY}.epochs": 1,
            f"{POLICY}.minibatches": 1,
            f"{POLICY}.terms.reward.objective": Clip(low=inf, high=inf),
            f"{POLICY}.terms.cost.objective": Constraint(),
            f"{POLICY}.terms.kl.objective": Divergence("exact", to="old"),
            "learners.main.transforms.constrain.limit": 9.5,
            "learners.main.transforms.constrain.multiplier": "",
        },
    )
    parts = stage.learners["main"].parts  # type: ignore[attr-defined]
    assert set(parts["policy"].terms) == {"reward", "cost", "kl"} and set(parts) == {"policy", "critic"}
    assert set(stage.models) == {"policy", "old", "critic", "cost_critic"}

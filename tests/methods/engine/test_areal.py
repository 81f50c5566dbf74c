"""AReaL as its recipe says it: the decoupled objective by hand, and how late answers may be."""

from __future__ import annotations

from math import log

import pytest
import torch

from built import CLIP, POLICY, holds, one_loss
from shuhari.batch import Batch
from shuhari.objectives.clip import Clip
from shuhari.testing import context
from shuhari.transforms.advantage import Advantage

DECOUPLED = Clip(low=0.2, high=0.2, behaviour="old", truncate=5.0, beyond="drop")
ADVANTAGE = [2.0, 2.0, -1.0, -1.0, -1.0, -1.0]
RATIO = [1.5, 1.1, 0.5, 1.25, 0.9, 2.0]  # of the present policy to the one before the update
FREE = [False, True, False, True, True, True]  # within the bounds of 0.8 and 1.2, or better clipped not at all


def measured(clip: Clip, mu: list[float]) -> tuple[list[float], list[float]]:
    """(loss, gradient) of each token, which had the log-probability 0 before the update and `mu` with the sampler."""
    new = torch.tensor([[log(x) for x in RATIO]], requires_grad=True)
    columns = {"policy/log_prob": torch.zeros(1, 6), "logp": torch.tensor([mu]), "advantage": torch.tensor([ADVANTAGE])}
    mask = torch.ones(1, 6, dtype=torch.bool)
    loss, _ = clip(Batch({"mask": mask, "live/policy/log_prob": new, **columns}), context())
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    return loss[0].tolist(), gradient[0].tolist()


def test_numbers_of_the_paper() -> None:
    stage = holds(
        "engine/areal",
        {
            "engine.staleness": 4,
            f"{CLIP}.objective": DECOUPLED,
            f"{CLIP}.reduce": "decision",
            f"{POLICY}.minibatches": 4,
            "collect.advantage": Advantage(unit="batch", scale="batch"),
        },
        usual=True,
    )
    one_loss(stage)
    assert holds("engine/areal", {f"{CLIP}.objective": DECOUPLED}).engine.staleness == 8  # type: ignore[attr-defined]


def test_it_is_ppo_if_the_sampler_is_the_policy_before_the_update() -> None:
    """Equation 5 with pi_prox = pi_behaviour: value and gradient are those of PPO's clip."""
    found = measured(DECOUPLED, [0.0] * 6)
    for mine, ppo in zip(found, measured(Clip(), [0.0] * 6), strict=True):
        assert mine == pytest.approx(ppo)
    clamped = [1.2, 1.1, 0.8, 1.25, 0.9, 2.0]
    assert found[0] == pytest.approx([-a * r for a, r in zip(ADVANTAGE, clamped, strict=True)])
    assert found[1] == pytest.approx([-a * r * f for a, r, f in zip(ADVANTAGE, RATIO, FREE, strict=True)])


def test_a_token_weighs_by_how_far_its_sampler_was_and_none_beyond_5() -> None:
    """w = exp(old - mu), 1/2 to 4.9 here, and 0 above 5, beside what the update's own ratio does."""
    w = [0.5, 2.0, 4.9, 1.0, 5.1, 3.0]
    loss, gradient = measured(DECOUPLED, [-log(x) for x in w])
    w[4] = 0.0
    one = measured(DECOUPLED, [0.0] * 6)
    assert loss == pytest.approx([x * y for x, y in zip(w, one[0], strict=True)])
    assert gradient == pytest.approx([x * y for x, y in zip(w, one[1], strict=True)])

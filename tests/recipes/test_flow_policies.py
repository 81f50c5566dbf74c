"""Flow policies under PPO as their recipes say it: whose ratio is clipped, where, and what their noise is."""

from __future__ import annotations

from math import exp, log
from typing import Any

import pytest
import torch

from built import built
from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.lab.claims.claim import read
from shuhari.models.chain import ChainPolicy
from shuhari.objectives.clip import Clip
from shuhari.objectives.denoise import Denoise
from shuhari.testing import context

NAMES = ("diffusion/reinflow", "diffusion/flow_noise", "diffusion/flow_sde")


def clip_of(recipe: str) -> Clip:
    found: Any = built(recipe).learners["main"].parts["policy"].terms["loss"].objective
    assert isinstance(found, Clip)
    return found


def clipped(
    recipe: str, new: list[float], *, score: str = "log_prob", advantage: float = 1.0
) -> tuple[float, list[float]]:
    """The mean loss of one chain of four steps that scored 0 before, and its gradient by the score of each step."""
    clip, x = clip_of(recipe), torch.tensor([new], requires_grad=True)
    zero = torch.zeros(1, 4)
    columns = {f"live/policy/{score}": x, f"policy/{score}": zero, "logp": zero, "advantage": zero + advantage}
    loss = clip(Batch({"mask": torch.ones(1, 4, dtype=torch.bool), **columns}), context())[0].mean()
    loss.backward()
    assert x.grad is not None
    return loss.item(), x.grad[0].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_imitation_comes_first_and_the_baseline_is_frozen(name: str) -> None:
    first, last = load(name).stages
    [taught] = build_stage(first).learners["main"].parts["policy"].terms.values()
    assert (taught.objective, taught.reduce) == (Denoise(), "row")
    stage = build_stage(last)
    part = stage.learners["main"].parts["policy"]
    assert set(part.terms) >= {"loss", "value"} and "denoise" not in part.terms and stage.learners["main"].transforms
    frozen = build_stage(read(name).arms["baseline"].stages[-1]).learners["main"].parts["policy"]
    assert frozen.optimiser.lr == 0 and part.optimiser.lr == 3e-4 and frozen.terms == part.terms


def test_reinflow_clips_the_geometric_mean_of_steps_and_dimensions() -> None:
    """Bounds of 1.25 %, for 1 % of five with the initial noise; the mean of 0.04 over four steps is 0.01, within."""
    loss, gradient = clipped("diffusion/reinflow", [0.04, 0.0, 0.0, 0.0], score="mean_log_prob")
    assert loss == pytest.approx(-exp(0.01)) and gradient == pytest.approx([-exp(0.01) / 4] * 4)
    loss, gradient = clipped("diffusion/reinflow", [0.08, 0.0, 0.0, 0.0], score="mean_log_prob")
    assert loss == pytest.approx(-1.0125) and gradient == [0.0] * 4
    terms = built("diffusion/reinflow").learners["main"].parts["policy"].terms
    assert terms["entropy"].weight == 0.015


def test_flow_noise_clips_the_mean_of_steps_at_a_fifth() -> None:
    loss, gradient = clipped("diffusion/flow_noise", [0.4, 0.0, 0.0, 0.0])
    assert loss == pytest.approx(-exp(0.1)) and gradient == pytest.approx([-exp(0.1) / 4] * 4)
    assert clipped("diffusion/flow_noise", [1.0, 0.0, 0.0, 0.0])[0] == pytest.approx(-1.2)


def test_flow_sde_clips_the_ratio_of_its_one_step() -> None:
    loss, gradient = clipped("diffusion/flow_sde", [0.0, log(1.1), 0.0, 0.0])
    assert loss == pytest.approx(-1.1) and gradient == pytest.approx([-1.1] * 4)  # of the others nothing is scored
    assert clipped("diffusion/flow_sde", [0.0, log(1.3), 0.0, 0.0])[0] == pytest.approx(-1.2)
    assert clipped("diffusion/flow_sde", [0.0, log(0.7), 0.0, 0.0], advantage=-1.0)[0] == pytest.approx(0.8)


def test_the_noise_of_each() -> None:
    found = {name: built(name).models["policy"].model for name in NAMES}
    rein, joint, sde = (found[name] for name in NAMES)
    assert isinstance(rein, ChainPolicy) and (rein.law, rein.low, rein.high, rein.bound) == ("noise", 0.1, 0.24, 1.0)
    assert (joint.law, joint.low, joint.high, joint.single) == ("noise", 0.08, 0.16, False)
    assert (sde.law, sde.level, sde.single) == ("sde", 0.5, True)

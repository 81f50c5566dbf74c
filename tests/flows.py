"""Flow policies under PPO as their recipes say it: whose ratio is clipped, where, and what comes before."""

from __future__ import annotations

from typing import Any

import torch

from built import built
from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.lab.demonstrations import read
from shuhari.models.chain import ChainPolicy
from shuhari.objectives.clip import Clip
from shuhari.objectives.denoise import Denoise
from shuhari.testing import context


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


def imitation_comes_first_and_the_baseline_has_noise_of_one_size(name: str) -> None:
    first, last = load(name).stages
    [taught] = build_stage(first).learners["main"].parts["policy"].terms.values()
    assert (taught.objective, taught.reduce) == (Denoise(), "row")
    stage = build_stage(last)
    part = stage.learners["main"].parts["policy"]
    assert set(part.terms) >= {"loss", "value"} and "denoise" not in part.terms and stage.learners["main"].transforms
    made = {arm: build_stage(recipe.stages[-1]) for arm, recipe in read(name).claim.arms.items()}
    model: Any = made["baseline"].models["policy"].model
    assert model.law == "noise" and model.low == model.high
    rates = {arm: stage.learners["main"].parts["policy"].optimiser.lr for arm, stage in made.items()}
    assert rates["method"] == rates["baseline"] == 3e-4


def chain_of(recipe: str) -> ChainPolicy:
    found: Any = built(recipe).models["policy"].model
    assert isinstance(found, ChainPolicy)
    return found

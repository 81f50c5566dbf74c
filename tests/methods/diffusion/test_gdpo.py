"""GDPO as its recipe says it: the bound at the nodes of a quadrature, of a whole answer."""

from __future__ import annotations

from typing import Any

from built import CLIP, built, holds, one_loss
from shuhari.objectives.clip import Clip
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.masks import Masks


def test_it_samples_and_scores_as_its_paper_does() -> None:
    stage: Any = built("diffusion/gdpo", usual=True)
    assert stage.rollout.role == "any"
    (term,) = stage.learners["main"].parts["policy"].terms.values()
    assert {need.name for need in term.objective.needs} == {"elbo"}
    masks = [t for t in stage.collect.values() if isinstance(t, Masks)]
    assert [(m.n, m.law) for m in masks] == [(3, "quadrature")]


def test_numbers_of_the_paper() -> None:
    """Clipped as one ratio of the whole answer; rewards less their mean, undivided."""
    wanted = {
        f"{CLIP}.objective": Clip(low=0.2, high=0.2, level="row", behaviour="old", score="elbo"),
        f"{CLIP}.reduce": "row",
        "collect.advantage": Advantage(centre="mean", scale="none"),
        "n": 8,
    }
    one_loss(holds("diffusion/gdpo", wanted, usual=True))

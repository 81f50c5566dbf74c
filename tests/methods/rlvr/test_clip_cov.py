"""Clip-Cov as its recipe and its claim say it; the loss itself is tested with the selective losses."""

from __future__ import annotations

from arms import in_the_place_of_the_clip, same_bounds_without_the_mechanism
from built import CLIP, holds, one_loss
from shuhari.objectives.selective import ClipCov


def test_numbers_of_the_paper() -> None:
    loss = ClipCov(fraction=2e-4, least=1.0, most=5.0, low=1.0, high=1.0)
    wanted = {f"{CLIP}.objective": loss, f"{CLIP}.reduce": "decision"}
    one_loss(holds("rlvr/clip_cov", wanted, usual=True))


def test_another_loss_in_the_place_of_the_clip() -> None:
    in_the_place_of_the_clip("clip_cov")


def test_the_same_bounds_without_the_mechanism() -> None:
    same_bounds_without_the_mechanism("clip_cov")

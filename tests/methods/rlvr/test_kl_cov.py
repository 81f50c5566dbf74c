"""KL-Cov as its recipe and its claim say it; the loss itself is tested with the selective losses."""

from __future__ import annotations

from math import inf

from arms import in_the_place_of_the_clip, same_bounds_without_the_mechanism
from built import CLIP, holds, one_loss
from shuhari.objectives.selective import KlCov


def test_numbers_of_the_paper() -> None:
    wanted = {f"{CLIP}.objective": KlCov(fraction=2e-3, beta=1.0, low=inf, high=inf), f"{CLIP}.reduce": "decision"}
    one_loss(holds("rlvr/kl_cov", wanted, usual=True))


def test_another_loss_in_the_place_of_the_clip() -> None:
    in_the_place_of_the_clip("kl_cov")


def test_the_same_bounds_without_the_mechanism() -> None:
    same_bounds_without_the_mechanism("kl_cov")

"""Lp-Reg as its recipe and its claim say it; the loss itself is tested with the selective losses."""

from __future__ import annotations

from arms import in_the_place_of_the_clip
from built import CLIP, holds, one_loss
from shuhari.objectives.selective import LpReg


def test_numbers_of_the_paper() -> None:
    loss = LpReg(fraction=0.01, kappa=0.02, beta=1.0, low=1.0, high=9.0)
    wanted = {f"{CLIP}.objective": loss, f"{CLIP}.reduce": "decision"}
    one_loss(holds("rlvr/lp_reg", wanted, usual=True))


def test_another_loss_in_the_place_of_the_clip() -> None:
    in_the_place_of_the_clip("lp_reg")

"""Lp-Reg as its recipe and its demonstration say it; the loss itself is tested with the selective losses."""

from __future__ import annotations

from arms import apart
from built import CLIP, holds, one_loss
from shuhari.lab import demonstrations
from shuhari.objectives.selective import LpReg


def test_numbers_of_the_paper() -> None:
    loss = LpReg(fraction=0.01, kappa=0.02, beta=1.0, low=1.0, high=9.0)
    wanted = {f"{CLIP}.objective": loss, f"{CLIP}.reduce": "decision"}
    one_loss(holds("rlvr/lp_reg", wanted, usual=True))


def test_another_loss_in_the_place_of_the_clip() -> None:
    arms = demonstrations.read("rlvr/lp_reg").claim.arms
    terms = {name: arm.stages[-1]["part"]["policy"]["terms"] for name, arm in arms.items()}
    uses = {name: {term: table["use"] for term, table in found.items()} for name, found in terms.items()}
    assert uses == {"method": {"loss": "lp_reg"}, "baseline": {"loss": "clip"}}
    assert apart("method", "baseline", arms) == {"part.policy.terms.loss"}
    assert all(found["loss"]["reduce"] == "decision" for found in terms.values())

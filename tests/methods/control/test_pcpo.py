"""PCPO as its recipe says it: CPO, but for the step; the step is tested with the optimiser."""

from __future__ import annotations

from arms import differ
from built import POLICY, holds
from shuhari.config.recipe import load


def test_numbers_of_the_paper() -> None:
    step = {"method": "pcpo", "bound": 0.01, "damping": 0.1, "iterations": 10, "tries": 15, "shrink": 0.8}
    holds("control/pcpo", {f"{POLICY}.optimiser.{k}": v for k, v in step.items()})


def test_it_is_cpo_but_for_the_step() -> None:
    (mine,), (cpo,) = (load(f"control/{name}").stages for name in ("pcpo", "cpo"))
    assert {k for k in differ(mine, cpo) if k.split(".")[0] != "claim"} == {"part.policy.optimiser.method"}

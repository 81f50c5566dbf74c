"""R-BOCPD-UCRL2: what its recipe and the arms of its claim set, and what the simulation of its detector tells."""

from __future__ import annotations

from typing import Any

import pytest

from built import holds
from shuhari.config.build import build_stage
from shuhari.lab.claims.claim import read
from shuhari.methods.theory.r_bocpd_ucrl2.change import Change


def test_what_it_sets() -> None:
    """All counts begin anew after an alarm, at the confidence of 0.95; bounds are a tenth of the theory's."""
    wanted = {"restarts": "all", "rate": 0.05, "window": 0, "delta": 0.05, "scale": 0.1, "buffer.size": 40}
    stage = holds("theory/r_bocpd_ucrl2", {f"learners.main.{k}": v for k, v in wanted.items()}, usual=True)
    assert stage.task.kwargs == {"period": 5000}  # type: ignore[attr-defined]


def test_its_arms_never_restart() -> None:
    arms = read("theory/r_bocpd_ucrl2").arms
    learner: Any = {name: build_stage(arm.stages[-1]).learners["main"] for name, arm in arms.items()}
    found = {name: (x.restarts, x.window, x.scale) for name, x in learner.items()}
    turned = {"window": (1250, 0.025), "sharp": (1250, 0.0125), "brief": (625, 0.0125), "short": (625, 0.025)}
    others = {name: ("never", *knobs) for name, knobs in {**turned, "bold": (0, 0.1)}.items()}
    assert found == {"method": ("all", 0, 0.025), "baseline": ("never", 0, 0.025), **others}


def test_the_simulation_tells_alarms_and_delays() -> None:
    found = Change(runs=6, length=80, kinds=3)(0)
    assert found["false_alarms"] == 0 and found["found"] > 0.5 and 0 < found["delay"] <= 40
    with pytest.raises(ValueError, match="expected at least 2 and 4"):
        Change(kinds=1)

"""RedStar as its recipe says it: solutions of hard problems are imitated, and what it is compared with."""

from __future__ import annotations

from typing import Any

from built import CLIP, holds
from shuhari.config.build import build_stage
from shuhari.lab.claims.claim import read
from shuhari.objectives.likelihood import Nll


def test_what_it_sets() -> None:
    """Hard is solved less than one time in three; of eight answers that is two right ones at most."""
    buffer = {"pool": 1024, "most": 128, "n": 8, "low": 0.0, "high": 0.333, "size": 32, "graded": True, "stream": "ce"}
    wanted = {f"learners.main.buffer.{k}": v for k, v in buffer.items()}
    loss = {f"{CLIP}.objective": Nll(), f"{CLIP}.reduce": "decision", f"{CLIP}.stream": "ce", f"{CLIP}.weight": 1.0}
    stage = holds("data/redstar", {**wanted, **loss, "collect": {}}, usual=True)
    learner = stage.learners["main"]
    assert list(learner.parts["policy"].terms) == ["loss"] and not learner.transforms  # type: ignore[attr-defined]
    assert [i for i in range(9) if 0.0 <= i / 8 <= learner.buffer.high] == [0, 1, 2]  # type: ignore[attr-defined]


def test_its_arms_choose_other_problems_and_nothing_else() -> None:
    arms = {name: build_stage(arm.stages[-1]).learners["main"] for name, arm in read("data/redstar").arms.items()}
    ranges = {name: (x.buffer.low, x.buffer.high) for name, x in arms.items()}  # type: ignore[attr-defined]
    hard, easy, every = (0.0, 0.333), (0.667, 1.0), (0.0, 1.0)
    wanted = {"method": hard, "method_fast": hard, "method_all": hard, "baseline": easy, "any": every, "fast": every}
    assert ranges == {**wanted, "all": every}
    whole: Any = arms.pop("all")
    unbounded: Any = arms.pop("method_all")
    assert (unbounded.buffer.graded, unbounded.buffer.most, unbounded.buffer.pool) == (True, 0, 1024)
    assert (whole.buffer.graded, whole.buffer.most, whole.buffer.pool, whole.buffer.size) == (False, 0, 1024, 32)
    assert len({(x.buffer.most, x.buffer.size, x.buffer.n) for x in arms.values()}) == 1  # type: ignore[attr-defined]

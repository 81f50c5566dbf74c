"""SRL as its recipe says it: workers and slots, which change nothing of what is learnt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from built import holds
from shuhari.config.recipe import load
from shuhari.loop.run import train
from shuhari.store import Run
from shuhari.testing.compare import contents, differences


def test_what_it_sets() -> None:
    stage = holds("engine/srl", {"rollout.workers": 2, "rollout.ring": 4, "rollout.lanes": 8}, usual=True)
    rollout: Any = stage.rollout
    assert rollout.lanes % rollout.ring == 0 and rollout.workers <= rollout.lanes // rollout.ring  # a slot has them


def test_the_recipe_is_the_same_run_with_any_number_of_workers(tmp_path: Path) -> None:
    """Stopped with two workers, gone on with none."""
    wrappers = [{"use": "shuhari.tasks.latency.Latency", "seconds": 0.0}]
    few = {"steps": 6, "buffer.size": 64, "models.policy.hidden": [8], "evaluate.n": 2, "store.every": 1}
    srl = load("engine/srl").with_settings({**few, "task.wrappers": wrappers})
    assert (srl.tree["rollout"]["workers"], srl.tree["rollout"]["ring"]) == (2, 4)
    list(train(srl.with_settings({"rollout.workers": 0}), tmp_path / "whole"))
    steps: Any = train(srl, tmp_path / "cut")
    assert [next(steps)["step"] for _ in range(4)] == [1, 2, 3, 4]
    steps.close()
    assert [r["step"] for r in train(srl.with_settings({"rollout.workers": 0}), tmp_path / "cut")] == [5, 6]
    assert Run(tmp_path / "cut").status == "complete"
    assert differences(contents(tmp_path / "whole"), contents(tmp_path / "cut")) == []

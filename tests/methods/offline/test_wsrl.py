"""WSRL as its recipe says it: Cal-QL's floor offline, nothing recorded and nothing conservative online, and no update
before the frozen policy has filled the replay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from shuhari.config.recipe import load
from shuhari.learners.gradient import GradientLearner
from shuhari.testing import loop, open_run

SMALL = {
    "models.policy.hidden": [8], "models.critic.hidden": [8], "stage.offline.steps": 1,
    "stage.offline.buffer.draws": 3, "stage.offline.buffer.size": 8, "stage.offline.buffer.data.episodes": 3,
    "stage.offline.evaluate.n": 0, "stage.offline.evaluate.every": 0,
    "stage.online.env_steps": 70, "stage.online.buffer.draws": 4, "stage.online.buffer.size": 8,
    "stage.online.buffer.collect": 10, "stage.online.buffer.warmup": 60,
    "stage.online.evaluate.n": 0, "stage.online.evaluate.every": 0,
}  # fmt: skip


def weights(ctx: Any) -> torch.Tensor:
    roles = ("policy", "critic", "target", "temperature")
    return torch.cat([parameters_to_vector(ctx.models[r].module.parameters()) for r in roles]).clone()


def test_the_switch_drops_the_data_and_updates_wait_for_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    update = GradientLearner.update

    def watched(self: Any, batch: Any, ctx: Any) -> Any:
        rows = getattr(self.buffer, "state", {}).get("seen")
        before = weights(ctx)
        out = update(self, batch, ctx)
        seen.append({"terms": {*self.parts["critic"].terms}, "recorded": int((batch["version"] == -1).sum()),
                     "rows": rows, "before": before})  # fmt: skip
        return out

    monkeypatch.setattr(GradientLearner, "update", watched)
    run = open_run(load("offline/wsrl").with_settings(SMALL))
    after = []
    for _ in loop(run):
        after.append(weights(run.ctx))
    offline, online = seen[:3], seen[3:]
    assert all(u["terms"] == {"soft_td", "conservative_sampled"} and u["recorded"] == 8 for u in offline)
    assert all(u["terms"] == {"soft_td"} and u["recorded"] == 0 for u in online)
    assert [u["rows"] for u in online] == [60] * 4 + [70] * 4
    assert torch.equal(online[0]["before"], after[0])  # as the offline stage left them, bit by bit
    assert not torch.equal(online[-1]["before"], after[0])


def test_what_was_recorded_bounds_the_values_of_the_policy() -> None:
    tree: Any = load("offline/wsrl").tree
    terms = tree["stage"]["offline"]["part"]["critic"]["terms"]
    assert terms["conservative_sampled"]["floor"] == "to_go" and tree["stage"]["offline"]["buffer"]["gamma"] == 0.99

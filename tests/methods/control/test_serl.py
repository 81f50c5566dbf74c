"""RLPD and SERL as their recipes say them: SAC in the limit, exact halves, and who is trained how often."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from shuhari.config.recipe import load
from shuhari.learners.gradient import GradientLearner
from shuhari.testing import loop, open_run

SMALL = {
    "evaluate.n": 0, "evaluate.every": 0, "models.policy.hidden": [8], "models.critic.hidden": [8],
    "rollout.random": 64,
}  # fmt: skip
ONLINE = {"use": "replay", "capacity": 1000, "size": 32, "collect": 20, "draws": 3, "warmup": 64}


def reports(name: str, **settings: Any) -> list[dict[str, Any]]:
    recipe = load(name).with_settings({**SMALL, "env_steps": 120, **settings})
    return [{k: v for k, v in r.items() if k.partition("/")[0] in ("critic", "policy", "temperature")}
            for r in loop(open_run(recipe))]  # fmt: skip


def test_with_two_critics_one_update_and_no_demonstrations_it_is_sac() -> None:
    """Subsets of two among two are all of them; the entropy is in the target, and the policy goes by the least."""
    task = {"task": {"name": "gym/world/point", "kwargs": {"limit": 50}},
            "part.temperature.terms.temperature.target_entropy": -1.0}
    limit = {
        "models.critic": {"n": 2, "norm": False}, "part.critic.terms.soft_td.entropy": True,
        "part.policy": {"every": 1, "after": 0, "terms": {"reparam": {"over": "min"}}},
        "part.temperature": {"every": 1, "after": 0},
        "remove": ["buffer"], "buffer": {"use": "mixture", "buffers": {"online": ONLINE}},
    }  # fmt: skip
    sac = reports("baselines/sac_pendulum", **task, remove=["buffer"], buffer=ONLINE)
    rlpd = reports("baselines/rlpd_point", **task, **limit)
    assert rlpd == sac and any("policy/grad_norm" in r and "critic/grad_norm" in r for r in sac)
    limit["part.critic.terms.soft_td.subset"] = 1
    assert reports("baselines/rlpd_point", **task, **limit) != sac


@pytest.mark.parametrize("name", ["baselines/rlpd_point", "control/serl"])
def test_half_of_each_batch_is_recorded_and_every_fourth_trains_the_policy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, update = [], GradientLearner.update

    def watched(self: Any, batch: Any, ctx: Any) -> Any:
        nets = [ctx.models[role].module for role in ("critic", "policy", "temperature")]
        before = [parameters_to_vector(net.parameters()).clone() for net in nets]
        out = update(self, batch, ctx)
        moved = [not torch.equal(a, parameters_to_vector(n.parameters())) for a, n in zip(before, nets, strict=True)]
        found.append((len(batch), int((batch["version"] == -1).sum()), *moved))
        return out

    monkeypatch.setattr(GradientLearner, "update", watched)
    draws = {f"buffer.buffers.{part}.draws": 8 for part in ("online", "recorded")}
    recipe = load(name).with_settings({**SMALL, **draws, "env_steps": 64, "buffer.buffers.online.warmup": 64})
    list(loop(open_run(recipe)))
    assert found == [(256, 128, True, last, last) for last in (False, False, False, True) * 2]

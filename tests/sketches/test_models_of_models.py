"""Two methods whose policy is made of other roles: RAST (218), a product of three language models of which one is
trained through it, and ResFiT (55), where an off-policy learner corrects a frozen controller.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import harness
import pytest
import torch

from shuhari.config.recipe import Recipe, RecipeError, load
from shuhari.learners.parts import Term
from shuhari.models.product import Product
from shuhari.objectives.clip import Clip
from shuhari.testing import Role, Run, check_resumed, loop, open_run
from shuhari.transforms.advantage import Advantage


def guided() -> Run:
    """The policy is large + tuned - small; RL through it moves the tuned one alone."""
    models = {
        "policy": Product({"large": 1.0, "tuned": 1.0, "small": -1.0}),  # named before those that it is made of
        "tuned": Role(init="small"),
        "large": Role(harness.tiny(), frozen=True),
        "small": Role(harness.tiny(), frozen=False),
    }
    part = harness.part("tuned", clip=Term(Clip()))
    made = harness.stage({"policy": part}, models=models, collect={"advantage": Advantage(centre="none", scale="none")},
                         weights={"length": 1.0}, rewards={"length": Length()}, steps=2)  # fmt: skip
    return harness.make(made)


class Length:
    """What half of all answers are right about, whatever the model."""

    async def grade(self, group: Any, ctx: Any) -> list[dict[str, float]]:
        return [{"length": float(t.steps[-1].action.sum() % 2)} for t in group]


def test_reinforcement_through_a_product_of_language_models() -> None:
    run = guided()
    reports = harness.train(run)
    run.enter_stage()
    before = {role: harness.weights(run, role) for role in ("large", "tuned", "small")}
    assert torch.equal(before["tuned"], before["small"])
    report = next(reports)
    assert report["policy/ratio"] == pytest.approx(1.0, abs=1e-4)  # scored as it was sampled
    moved = {role for role, old in before.items() if not torch.equal(harness.weights(run, role), old)}
    assert moved == {"tuned"}
    assert not run.ctx.models["policy"].module.state_dict()
    check_resumed(guided)


def test_the_engine_samples_from_copies_of_what_a_model_is_made_of() -> None:
    from shuhari.engines.copies import Copies

    run = guided()
    run.enter_stage()
    copies, models = Copies(), run.ctx.models
    copies.renew(models)
    twin: Any = copies.of(models["policy"])
    assert [m is copies.of(models[r]) for r, m in zip(twin.roles, twin.others.models, strict=True)] == [True] * 3
    assert twin.others.models[0] is not models["large"]
    mine: Any = models["policy"]
    assert mine.others.models[0] is models["large"]
    run.ctx.close()


SMALL = {"models.policy.hidden": [8], "models.critic.hidden": [8], "env_steps": 300, "rollout.random": 20,
         "buffer.warmup": 20, "buffer.size": 16, "remove": ["evaluate"]}  # fmt: skip


def corrected(source: str = "") -> Recipe:
    """TD3 whose policy corrects the base; in the table of models it then stands behind the target that copies it."""
    base = {"use": "deterministic", "hidden": [8], **({"from": source} if source else {"frozen": True})}
    policy = {"use": "residual", "hidden": [8], "scale": 0.2}
    return load("baselines/td3_pendulum").with_settings(
        {k: v for k, v in SMALL.items() if k != "models.policy.hidden"}
        | {"remove": ["evaluate", "models.policy"], "models.policy": policy, "models.base": base}
    )


def test_a_frozen_controller_is_corrected(tmp_path: Path) -> None:
    first = load("baselines/td3_pendulum").with_settings(SMALL)
    list(loop(open_run(first, tmp_path / "base")))
    recipe = corrected(f"{tmp_path / 'base'}:policy")
    run = open_run(recipe)
    run.enter_stage()
    base, policy, target = (run.ctx.models[r] for r in ("base", "policy", "target_policy"))
    assert target.others.models == policy.others.models == [base]  # type: ignore[attr-defined]
    assert not any(p.requires_grad for p in base.module.parameters())
    saved = open_run(first, tmp_path / "base").ctx.models["policy"].module.state_dict()
    assert all(torch.equal(x, saved[k]) for k, x in base.module.state_dict().items())
    old, fixed = harness.weights(run, "policy"), harness.weights(run, "base")
    reports = list(harness.train(run))
    assert reports and not torch.equal(harness.weights(run, "policy"), old)
    assert torch.equal(harness.weights(run, "base"), fixed)


def test_weights_that_are_not_there_are_told(tmp_path: Path) -> None:
    list(loop(open_run(load("baselines/td3_pendulum").with_settings(SMALL), tmp_path / "base")))
    with pytest.raises(KeyError, match=r"no role 'base' there .*known: .*policy"):
        open_run(corrected(str(tmp_path / "base"))).enter_stage()
    for wrong in ({"init": "policy", "from": "x"}, {"from": "x"}):
        recipe = load("baselines/td3_pendulum").with_settings({"models.other": wrong})
        with pytest.raises(RecipeError, match=r"models\.other"):
            open_run(recipe)

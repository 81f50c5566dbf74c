"""NLPO: the masked loss by enumeration, PPO itself if nothing is masked, and the mask's copy at its period."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shuhari.batch import Batch
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.events import Committed, Updated
from shuhari.models.product import Product
from shuhari.models.tabular import Tabular
from shuhari.needs import evaluate
from shuhari.objectives.clip import Clip
from shuhari.tasks.gridworld import Gridworld
from shuhari.testing import context

MASK, POLICY = (0.5, 0.3, 0.15, 0.05), (0.4, 0.1, 0.1, 0.4)
ALL = 1 - 1e-7  # nothing is outside of the smallest set with this much


def make_roles(top_p: float) -> dict[str, Any]:
    """A table of four actions for each role, the same in every state, and the policy within the mask's set."""
    roles: dict[str, Any] = {"policy": Tabular(), "mask": Tabular()}
    for role, p in (("policy", POLICY), ("mask", MASK)):
        roles[role].build(Gridworld())
        with torch.no_grad():
            roles[role].module.logits.copy_(torch.tensor(p).log().expand(16, 4))
    roles["masked"] = Product({"policy": 1.0}, "mask", top_p=top_p)
    roles["masked"].bind(roles)
    roles["masked"].build(Gridworld())
    return roles


def find_loss(role: str, roles: dict[str, Any], logp: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
    """Each action taken once in state 0, [A] losses, and their gradient with respect to the policy's logits [A]."""
    n = len(logp)
    columns = {"mask": torch.ones(n, 1, dtype=torch.bool), "context": torch.zeros(n, dtype=torch.long)}
    columns |= {"action": torch.arange(n), "logp": logp[:, None], "advantage": advantage[:, None]}
    batch, term = Batch(columns), Clip(role=role)
    batch = batch.put(evaluate(batch, term.needs, roles, trains=("policy",)))
    loss, _ = term(batch, context(count=1))
    (slope,) = torch.autograd.grad(loss.sum(), roles["policy"].module.parameters())
    return loss[:, 0].detach(), slope[0]


def test_the_loss_by_hand() -> None:
    """The mask keeps three actions; of the policy's (.4, .1, .1) they have 2/3, 1/6, 1/6. As sampled they had 1/2, 1/4,
    1/4: ratios 4/3, held at 1.2, and 2/3, held at 0.8 if the advantage is negative."""
    old = torch.tensor([0.5, 0.25, 0.25]).log()
    loss, slope = find_loss("masked", make_roles(0.9), old, torch.tensor([1.0, 1.0, -1.0]))
    assert loss.tolist() == pytest.approx([-1.2, -2 / 3, 0.8])
    # only the second has a gradient: -2/3 (one-hot - masked probabilities), and none outside of the mask
    assert slope.tolist() == pytest.approx([2 / 3 * 2 / 3, -2 / 3 * 5 / 6, 2 / 3 / 6, 0.0])


def test_a_mask_that_keeps_all_is_ppo() -> None:
    old, advantage = torch.tensor([0.3, 0.2, 0.1, 0.4]).log(), torch.tensor([1.0, -0.5, 0.3, -1.0])
    masked, plain = (find_loss(role, make_roles(ALL), old, advantage) for role in ("masked", "policy"))
    torch.testing.assert_close(masked, plain)


def test_the_mask_is_renewed_at_its_period_between_batches() -> None:
    """Training moves the policy to 1, 2, 3, ...; updates within a step are not counted."""
    stage = build_stage(load("preference/nlpo", settings={"stage.rl.follow.mask.every": 2}).stages[-1], {})
    roles: dict[str, Any] = {name: SimpleNamespace(module=nn.Linear(1, 1, bias=False)) for name in ("policy", "mask")}
    seen = []
    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        for role in ("policy", "mask") if value == 1 else ("policy",):
            nn.init.constant_(roles[role].module.weight, value if role == "policy" else 0.0)
        for event in (Updated("main", {}), Updated("main", {}), Committed(1)):
            for rule in stage.follows.values():
                rule(roles, event)
        seen.append(roles["mask"].module.weight.item())
    assert seen == [0.0, 2.0, 2.0, 4.0, 4.0]


def test_the_recipe_samples_and_trains_the_same_masked_policy() -> None:
    table: Any = load("preference/nlpo").stages[-1]
    assert table["rollout"]["role"] == table["part"]["policy"]["terms"]["loss"]["role"] == "masked"
    model = table["models"]["masked"]
    assert (model["within"], model["top_p"], dict(model["of"])) == ("mask", 0.9, {"policy": 1.0})

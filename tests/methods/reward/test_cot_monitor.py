"""CoT Monitor+ by hand: what a warning costs, what it takes from the advantage, and when the price rises."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from math import log
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shuhari import testing
from shuhari.config.build import build_stage
from shuhari.config.recipe import load
from shuhari.data import ContractError, Problem, Request, Trajectory
from shuhari.methods.reward.cot_monitor.self_monitor import SelfMonitor
from shuhari.models.critics import Scalar
from shuhari.objectives.dual import Dual
from shuhari.testing import groups
from shuhari.transforms.advantage import Advantage
from shuhari.transforms.constrain import Constrain
from spoken import said

TEXT = "0123456789+-=;.!*xklm"


class Spells:
    """A text model that only spells."""

    end, limit = -1, 64

    def encode(self, prompt: Any) -> Any:
        return np.array([TEXT.index(x) for x in prompt], np.int32)

    def decode(self, ids: Any) -> str:
        return "".join(TEXT[i] for i in ids)


def grade(texts: list[str], say: Mapping[str, float], prompt: Any = "7-5+6=") -> tuple[list[Any], list[str]]:
    """Grades, and what the monitor has read; `say`: probability of a warning by the reasoning's last letter."""
    read = []

    def score(context: Any, action: Any) -> float:
        seen, word = Spells().decode(context), Spells().decode(action)
        read.append(seen)
        p = say[seen[-2]]
        return log(0.5 * p if word == "!" else 0.5 * (1 - p))  # half of the mass is on neither

    models: Any = {"monitor": Spells()}
    ctx = testing.context(models=models, engine=testing.ScriptedEngine(scores={"log_prob": score}))
    request = Request(Problem("loophole", "7-5+6", prompt, "8"), len(texts))
    group = [Trajectory(request, tuple(said(text))) for text in texts]
    return asyncio.run(SelfMonitor().grade(group, ctx)), read


def test_a_warning_costs_its_share_of_the_two_comments_whatever_the_answer_says_of_itself() -> None:
    found, read = grade(["k;.*", "k;!x", "+6=8;.8", "k", "k;.;!x"], {"k": 0.75, "8": 0.125})
    assert [g["monitor"] for g in found] == pytest.approx([0.75, 0.75, 0.125, 0.75, 0.75], rel=1e-6)
    assert set(read) == {"7-5+6=k;", "7-5+6=+6=8;"}


def test_a_prompt_that_is_no_text_is_refused() -> None:
    with pytest.raises(ContractError, match="expected text"):
        grade(["k;.*"], {"k": 0.5}, prompt=np.zeros(3, np.float32))


@pytest.mark.parametrize("settings", [{"mark": ""}, {"warning": ""}, {"warning": ".", "clear": "."}])
def test_comments_that_cannot_be_told_apart_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        SelfMonitor(**settings)


def mix(rewards: list[float], costs: list[float], price: float, limit: float = 0.05) -> tuple[Tensor, Tensor]:
    """[B] advantages, and [B, 1] the excess, by the transforms of the recipe."""
    batch = groups([rewards], lengths=1)
    batch = batch.put({"reward/monitor": torch.tensor(costs)[:, None]})
    multiplier: Any = lambda batch: Scalar(torch.tensor(log(price)))  # noqa: E731
    ctx = testing.context(models={"multiplier": multiplier})
    batch = Advantage(scale="none")(batch, ctx)
    batch = Advantage(scale="none", reward="reward/monitor", into="cost_advantage")(batch, ctx)
    batch = Constrain(limit=limit, cost="reward/monitor", costs="cost_advantage", multiplier="multiplier")(batch, ctx)
    return batch["advantage"][:, 0], batch["excess"]


def test_the_advantage_by_hand() -> None:
    """Rewards 1, 1, 0, 0, costs 1, 0, 0, 1, a price of 3: (A - 3 A_c) / 4; mean cost 0.45 over the limit."""
    advantage, excess = mix([1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0], 3.0)
    assert advantage.tolist() == pytest.approx([-0.25, 0.5, 0.25, -0.5])
    assert excess.flatten().tolist() == pytest.approx([0.45] * 4)


@pytest.mark.parametrize(("price", "sign"), [(0.2, 1), (0.59, 1), (0.61, -1), (3.0, -1)])
def test_a_cheat_that_gains_three_fifths_pays_until_its_price_is_three_fifths(price: float, sign: int) -> None:
    """Of five honest answers two pass, of five cheats all, and each is warned of."""
    advantage, _ = mix([1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0], [0.0] * 5 + [1.0] * 5, price)
    assert float(advantage[5:].mean() - advantage[:5].mean()) == pytest.approx((0.6 - price) / (1 + price), abs=1e-6)
    assert (0.6 - price) * sign > 0


@pytest.mark.parametrize("excess", [0.3, -0.05, 0.0])
def test_the_price_follows_the_excess(excess: float) -> None:
    """The gradient of the loss with respect to the logarithm of the price is minus the excess."""
    price = torch.zeros((), requires_grad=True)
    batch: Any = {"excess": torch.full((2, 1), excess)}
    model: Any = lambda batch: Scalar(price)  # noqa: E731
    loss, _ = Dual()(batch, testing.context(models={"multiplier": model}))
    loss.mean().backward()
    assert price.grad is not None and float(price.grad) == pytest.approx(-excess)


def test_the_recipe_freezes_the_monitor_and_trains_on_the_check_alone() -> None:
    stage: Any = build_stage(load("reward/cot_monitor").stages[-1], {})
    trained = {role for part in stage.learners["main"].parts.values() for role in part.trains}
    assert trained == {"policy", "multiplier"} and stage.models["monitor"].init == "policy"
    assert {name: w for name, w in stage.weights.items() if w} == {"score": 1.0}
    assert isinstance(stage.collect["constrain"], Constrain)

"""Success rates from a value model: what it is asked and what it learns, by hand, and a run that picks by it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from built import SCALED, at, demonstrated, one_loss
from shuhari import testing
from shuhari.buffers.fresh import Fresh
from shuhari.config.stage import Role
from shuhari.curricula.sequential import Sequential
from shuhari.curricula.target import Target
from shuhari.data import Problem
from shuhari.kernel.reduce import weights
from shuhari.learners.parts import Term
from shuhari.methods.curriculum.pcl.prompt_rate import PromptRate
from shuhari.methods.curriculum.pcl.prompt_value import ValueOfPrompt
from shuhari.models.text.causal import CausalValue
from shuhari.objectives.clip import Clip
from shuhari.objectives.value import Value
from shuhari.ports import Predictor
from shuhari.testing import context, groups
from shuhari.transforms.advantage import Advantage
from sketches import harness
from sketches.toys import Echo

predictor: Predictor = ValueOfPrompt()


class Scores:
    """An engine whose critic says what it was given for the first token of a prompt."""

    def __init__(self, values: dict[int, Any]) -> None:
        self.values, self.asked = values, []  # type: ignore[var-annotated]

    async def score(self, role: str, context: Any, action: Any, names: Any) -> Any:
        self.asked.append((role, context.tolist(), len(action), tuple(names)))
        return {"value": np.array([self.values[int(context[0])]])}


def test_the_value_of_the_prompt_is_what_is_predicted() -> None:
    """V = (.1, .45, .52, .9): the two nearest one half are the second and the third."""
    engine = Scores({0: 0.1, 1: 0.45, 2: 0.52, 3: 0.9})
    problems = [Problem("t", str(i), np.array([i, 7])) for i in range(4)]
    ctx = context(engine=engine, models={"judge": None})
    p, expected = asyncio.run(ValueOfPrompt("judge").predict(problems, ctx))
    assert p.tolist() == expected.tolist() == pytest.approx([0.1, 0.45, 0.52, 0.9])
    assert engine.asked == [("judge", [i, 7], 1, ("value",)) for i in range(4)]
    assert sorted(Target(predictor, Sequential()).nearest_to_target(p, 2, ctx).tolist()) == [1, 2]


def test_values_are_held_in_the_unit_interval_and_several_are_averaged() -> None:
    engine = Scores({0: -0.5, 1: 1.5, 2: [0.2, 0.4]})
    problems = [Problem("t", str(i), np.array([i])) for i in range(3)]
    p, _ = asyncio.run(predictor.predict(problems, context(engine=engine, models={"critic": None})))
    assert p.tolist() == pytest.approx([0, 1, 0.3])


def test_what_is_regressed_is_the_rate_of_each_prompt_and_each_weighs_alike() -> None:
    """One table of values, a step of size a on (V - p)^2 / 2 over m prompts: V <- V - a (V - p) / m."""
    batch = groups([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, float("nan")]], lengths=[[1, 3, 2, 1], [2, 1, 2, 3]])
    batch = PromptRate()(batch, context())
    assert batch["rate"].amax(1).tolist() == pytest.approx([0.25] * 4 + [2 / 3] * 4)
    assert (batch["weight/rate"].sum(1) == 1).all() and (batch["weight/rate"][:, 0] == 1).all()
    table = torch.tensor([0.5, 0.5], requires_grad=True)
    value = table.repeat_interleave(4)[:, None].expand_as(batch["mask"])
    loss, _ = Value(role="critic", target="rate")(batch.put({Value().needs[0].key: value}), context())
    (loss * weights(batch["weight/rate"], batch, "decision")).sum().backward()
    assert table.grad is not None
    assert table.grad.tolist() == pytest.approx([(0.5 - 0.25) / 2, (0.5 - 2 / 3) / 2])


def test_a_group_without_grades_teaches_nothing() -> None:
    batch = PromptRate(into="p")(groups([[float("nan")] * 2, [1.0, 0.0]], lengths=2), context())
    assert batch["weight/p"].sum(1).tolist() == [0, 0, 1, 1] and not batch["p"].isnan().any()


# ---------------------------------------------------------------- in a run


def run_of(steps: int = 3, of: int = 2) -> Any:
    critic = CausalValue(hidden=16, layers=1, heads=2, intermediate=16)
    models = {"policy": harness.tiny(), "judge": Role(critic)}
    parts = {
        "policy": harness.part(clip=Term(Clip())),
        "judge": harness.part("judge", value=Term(Value(role="judge", target="rate"), stream="rate")),
    }
    return harness.make(
        harness.stage(
            parts, task=Echo("abcdefgh"), buffer=Fresh(4), steps=steps, models=models, n=8, max_new=1,
            curriculum=Target(ValueOfPrompt("judge"), Sequential(), of=of),
            collect={"advantage": Advantage(), "rate": PromptRate()},
        )
    )  # fmt: skip


def test_the_first_prediction_is_nought_and_it_learns() -> None:
    reports = list(harness.train(run_of(steps=12)))
    assert reports[0]["curriculum/predicted"] == 0.0
    late = reports[-4:]
    assert sum(r["curriculum/predicted"] for r in late) > 0


def test_a_restored_run_goes_on_as_if_never_stopped() -> None:
    testing.check_resumed(run_of)


def test_numbers_of_the_paper() -> None:
    stage = demonstrated("curriculum/pcl")
    wanted = {
        "curriculum.pick": "topk",
        "curriculum.of": 4,  # k
        "curriculum.target": 0.5,  # tau
        "n": 8,
        "collect": SCALED | {"rate": PromptRate()},
        "learners.main.parts.difficulty.terms.value.objective": Value(role="difficulty", target="rate"),
    }
    assert {path: at(stage, path) for path in wanted} == wanted
    one_loss(stage)

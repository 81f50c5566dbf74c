"""What breaks a port is found, by the check of one call and in a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shuhari.batch import Batch
from shuhari.config.recipe import Recipe, load
from shuhari.data import Problem, Request, Step, Trajectory
from shuhari.ports import Ctx
from shuhari.rollouts.vector.vector import VectorRollout
from shuhari.testing import (
    ConformanceError,
    check_metric,
    check_objective,
    check_recipe,
    check_reward,
    check_transform,
    context,
    groups,
    transitions,
)
from shuhari.transforms.advantage import Advantage

BATCH = groups([[1.0, 0.0], [0.5, 0.25]])


@dataclass
class Odd:
    """A transform that does what `fault` says."""

    fault: str = ""
    needs: tuple[()] = field(default=(), init=False)
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"calls": 0})

    def __post_init__(self) -> None:
        self.calls = 0

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        self.state["calls"] += 1
        self.calls += 1
        advantage = torch.zeros(len(batch), batch.width)
        if self.fault == "in place":
            batch["reward"].zero_()
        if self.fault == "deletes":
            batch = batch.take(torch.arange(len(batch) - 1))
            advantage = advantage[:-1]
        if self.fault == "reorders":
            batch = batch.take(torch.arange(len(batch)).flip(0))
        if self.fault == "global":
            advantage = torch.rand(len(batch), batch.width)
        if self.fault == "outside of state":
            advantage = advantage + self.calls
        if self.fault == "nothing":
            return None  # type: ignore[return-value]
        if self.fault == "in state":
            advantage = advantage + self.state["calls"]
        if self.fault == "own stream":
            advantage = torch.rand(len(batch), batch.width, generator=ctx.rng("odd"))
        return batch.put({"advantage": advantage})


@pytest.mark.parametrize("fault", ["in place", "deletes", "reorders", "global", "outside of state", "nothing"])
def test_a_transform_that_breaks_its_port_is_found(fault: str) -> None:
    with pytest.raises(ConformanceError, match=r"^Odd: "):
        check_transform(Odd(fault), groups([[1.0, 0.0], [0.5, 0.25]]), context())


@pytest.mark.parametrize("fault", ["", "in state", "own stream"])
def test_memory_in_state_and_draws_from_a_stream_are_allowed(fault: str) -> None:
    transform = Odd(fault)
    for call in (1, 2):
        out = check_transform(transform, BATCH, context())
        assert transform.state["calls"] == call
        assert fault != "in state" or float(out["advantage"][0, 0]) == call


@dataclass
class Loss:
    """An objective that does what `fault` says."""

    fault: str = ""
    needs: tuple[()] = field(default=(), init=False)
    couples: str = field(default="row", init=False)

    def __call__(self, batch: Batch, ctx: Ctx) -> Any:
        loss = batch["reward"].clone()
        if self.fault == "couples":
            loss = loss - loss.mean()
        if self.fault == "shape":
            loss = loss[:, :1].repeat(1, 2)
        if self.fault == "number":
            loss = loss.mean()
        if self.fault == "nan":
            loss = loss / 0.0
        if self.fault == "global":
            loss = loss + torch.rand(())
        return loss if self.fault == "bare" else (loss, {})


@pytest.mark.parametrize("fault", ["couples", "shape", "number", "nan", "global", "bare"])
def test_an_objective_that_breaks_its_port_is_found(fault: str) -> None:
    with pytest.raises(ConformanceError, match=r"^Loss: "):
        check_objective(Loss(fault), BATCH, context())


def test_a_sound_objective_passes() -> None:
    loss, _ = check_objective(Loss(), BATCH, context())
    assert torch.equal(loss, BATCH["reward"])


@dataclass
class Gauge:
    """A metric that does what `fault` says."""

    fault: str = ""
    calls: int = 0

    def __call__(self, ctx: Ctx) -> Any:
        self.calls += 1
        ctx.charge("scored", 1)
        if self.fault == "trains":
            with torch.no_grad():
                ctx.models["policy"].module.weight += 1.0  # type: ignore[operator]
        if self.fault == "global":
            torch.rand(())
        value: Any = {"counts": float(self.calls), "text": "high"}.get(self.fault, 1.0)
        return value if self.fault == "bare" else {"x": value, "drawn": float(torch.rand((), generator=ctx.rng("x")))}


@pytest.mark.parametrize("fault", ["trains", "global", "counts", "text", "bare"])
def test_a_metric_that_breaks_its_port_is_found(fault: str) -> None:
    ctx = context(models={"policy": SimpleNamespace(module=torch.nn.Linear(1, 1))})
    with pytest.raises(ConformanceError, match=r"^Gauge: "):
        check_metric(Gauge(fault), ctx)
    assert set(check_metric(Gauge(), ctx)) == {"x", "drawn"}


def test_the_metrics_of_a_recipe_are_looked_at(tmp_path: Path) -> None:
    check_recipe(Path(__file__).parents[1] / "runs" / "evaluated.toml", tmp_path)


@dataclass
class Grader:
    grades: Any

    async def grade(self, group: Any, ctx: Any) -> Any:
        return self.grades


ANSWER = Trajectory(Request(Problem("t", "0", None)), (Step.of("question", "answer"),))


@pytest.mark.parametrize("grades", [[], [{"a": 1.0}, None], [1.0], [{"a": "high"}], [{1: 1.0}]])
def test_a_reward_that_breaks_its_port_is_found(grades: Any) -> None:
    with pytest.raises(ConformanceError, match=r"^Grader: "):
        check_reward(Grader(grades), [ANSWER], context())
    assert check_reward(Grader([None]), [ANSWER], context()) == [None]


RECIPE: dict[str, Any] = {
    "steps": 4, "task": {"name": "bandit"}, "models": {"policy": {"use": "tabular"}}, "rollout": {"n": 4},
    "buffer": {"size": 2}, "part": {"policy": {"terms": {"clip": {"behaviour": "present"}}, "optimiser": {"lr": 0.1}}},
}  # fmt: skip


@pytest.mark.parametrize(("fault", "found"), [("", False), ("in state", False), ("outside of state", True)])
def test_a_component_of_ones_own_is_looked_at_in_a_run(fault: str, found: bool, tmp_path: Path) -> None:
    odd = {"use": f"{__file__}:Odd", "fault": fault}
    recipe = Recipe("mine", {**RECIPE, "collect": {"advantage": {}, "odd": odd}}, {})
    if not found:
        check_recipe(recipe, tmp_path)
        return
    with pytest.raises(ConformanceError, match="when it was called again"):
        check_recipe(recipe, tmp_path)


def test_a_rollout_of_decisions_is_looked_at_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load("baselines/a2c_cartpole").with_settings({"env_steps": 80, "evaluate": {}})
    assert VectorRollout in check_recipe(recipe, tmp_path / "sound")
    collect = VectorRollout.collect
    monkeypatch.setattr(VectorRollout, "collect", lambda self, n, ctx: collect(self, 1, ctx))
    with pytest.raises(ConformanceError, match="VectorRollout: collected 8 decisions where 40 were wanted"):
        check_recipe(recipe, tmp_path / "broken")


def test_memory_that_is_not_saved_is_found_where_every_call_looks_sound(tmp_path: Path) -> None:
    """A count that goes up once a step, by an event: a call that is made again gives the same."""
    recipe = Recipe("mine", {**RECIPE, "collect": {"advantage": {}, "late": {"use": f"{__file__}:Late"}}}, {})
    with pytest.raises(ConformanceError, match="stopped and resumed"):
        check_recipe(recipe, tmp_path)


@dataclass
class Late:
    needs: tuple[()] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.heard = 0

    def observe(self, event: Any) -> None:
        self.heard += 1

    def __call__(self, batch: Batch, ctx: Ctx) -> Batch:
        return batch.put({"advantage": batch["advantage"] + self.heard})


def test_batches_are_as_a_run_packs_them() -> None:
    """By hand: rewards fall on the last token; group means of (1, 0) and of the one that is graded."""
    batch = groups([[1.0, 0.0], [0.5, None]], [[2, 1], [3, 1]])
    assert batch["mask"].sum(1).tolist() == [2, 1, 3, 1]
    assert batch.outcome()[:3].tolist() == [1.0, 0.0, 0.5] and bool(batch.outcome()[3].isnan())
    advantage = Advantage(scale="none")(batch, context())["advantage"]
    assert advantage[0, :2].tolist() == [0.5, 0.5] and float(advantage[1, 0]) == -0.5
    chains = transitions([[1.0, 2.0], [3.0]], finished=[True, False])
    assert chains["mask"].flatten().tolist() == [True, True, False, True, False]
    assert chains["parent"].tolist() == [-1, 0, 1, -1, 3] and chains["cont"].tolist() == [1, 1, 0, 1, 1]
    assert chains.outcome()[chains["leaf"]].tolist() == [3.0, 3.0]

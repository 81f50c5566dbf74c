"""What components must leave alone is told before the first step, and refuses none that keeps to its port."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.config.recipe import Recipe, load
from shuhari.data import ContractError
from shuhari.loop.breaches import sum_weights
from shuhari.loop.rehearsal import rehearse
from shuhari.loop.run import loop, open_run
from shuhari.testing import context, groups
from shuhari.transforms import apply
from small_runs import ALL, recipe

HERE = __name__
BANDIT = """steps = 2
task.name = "bandit"
models.policy.use = "tabular"
rollout.n = 4
buffer.size = 4
collect.advantage = {}
evaluate.n = 4
[part.policy]
terms.loss = {use = "clip"}
optimiser.lr = 0.1
"""


def bandit(folder: Path, **settings: Any) -> Recipe:
    (folder / "bandit.toml").write_text(BANDIT)
    return load(folder / "bandit.toml").with_settings(settings)


@dataclass
class Breaks:
    """A transform that does what `fault` says."""

    fault: str = ""
    needs = ()

    def __call__(self, batch: Any, ctx: Any) -> Any:
        draws: dict[str, Callable[[], Any]] = {
            "torch": lambda: torch.rand(()), "numpy": np.random.rand, "python": random.random,
        }  # fmt: skip
        draws.get(self.fault, int)()
        if self.fault == "in place":
            batch["reward"].add_(2.0)
        if self.fault == "order":
            return batch.take(torch.arange(len(batch)).flip(0))
        if self.fault == "repeats":  # as where a row stands for each of several draws
            return batch.take(torch.arange(len(batch)).repeat_interleave(2))
        out = {"dropped": lambda: batch.take(torch.arange(1)), "none": lambda: None, "dict": dict}
        return out.get(self.fault, lambda: batch.put({"advantage": batch["reward"]}))()


@pytest.mark.parametrize("at", ["collect", "transform"])
@pytest.mark.parametrize(("fault", "told"), [
    ("torch", "drew from a global generator: draw from ctx.rng"), ("numpy", "drew from a global generator"),
    ("python", "drew from a global generator"), ("in place", "changed the column 'reward' of the batch .*, in place"),
    ("order", "changed the order of the rows"),
])  # fmt: skip
def test_a_transform(fault: str, told: str, at: str, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=f"^Breaks {told}") as caught:
        rehearse(bandit(tmp_path, **{f"{at}.own": {"use": f"{HERE}.Breaks", "fault": fault}}))
    assert any("stage 'main'" in note for note in caught.value.__notes__)
    rehearse(bandit(tmp_path, **{f"{at}.own": {"use": f"{HERE}.Breaks"}}))
    rehearse(bandit(tmp_path, **{"transform.own": {"use": f"{HERE}.Breaks", "fault": "repeats"}}))


@pytest.mark.parametrize(("fault", "kind", "told"), [
    ("none", TypeError, "Breaks returned None: expected the batch with columns added"),
    ("dict", TypeError, "Breaks returned a dict: expected the batch"),
    ("dropped", ValueError, r"Breaks returned 1 rows of 2: a filter deletes none: it sets weights to 0"),
])  # fmt: skip
def test_what_a_transform_returns_is_told_wherever_it_is_called(fault: str, kind: Any, told: str) -> None:
    with pytest.raises(kind, match=told):
        apply([Breaks(fault)], groups([[1.0, 0.0]]), context())


@dataclass
class Looks:
    """A metric that does what `fault` says."""

    fault: str = ""

    def __call__(self, ctx: Any) -> dict[str, float]:
        weights = next(ctx.models["policy"].module.parameters())
        with torch.no_grad():
            weights.add_(float(self.fault in ("moves", "there and back")))
            if self.fault == "there and back":
                weights.sub_(1.0)
        return {"norm": float(weights.detach().norm()) + (float(torch.rand(())) if self.fault == "draws" else 0.0)}


def test_a_metric_that_moves_weights_is_told_before_the_first_step(tmp_path: Path) -> None:
    def begin(fault: str) -> Any:
        found = bandit(tmp_path, **{"evaluate.metrics.own": {"use": f"{HERE}.Looks", "fault": fault}})
        return next(loop(open_run(found)))

    with pytest.raises(ValueError, match=r"\[evaluate.metrics.own\] Looks changed the model of role 'policy'"):
        begin("moves")
    assert begin("")["problems"] == begin("there and back")["problems"] == ()
    (told,) = begin("draws")["problems"]
    assert told == "[evaluate.metrics.own] Looks drew from a global generator: draw from ctx.rng(name) or ctx.noise"


@dataclass
class Careless:
    """An objective that draws from a global generator, or doubles a column."""

    fault: str = ""
    couples: str = "row"
    needs = ()

    def __call__(self, batch: Any, ctx: Any) -> Any:
        if self.fault == "in place":
            batch["advantage"].mul_(2.0)
        noise = torch.rand(()) if self.fault == "draws" else 0.0
        return 0.0 * batch["advantage"] + noise, {}


def test_draws_of_what_may_have_reasons_are_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def told(**settings: Any) -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "shuhari"):
            rehearse(bandit(tmp_path, **settings))
        return caplog.text

    assert "generator" not in told()
    objective = {"use": f"{HERE}.Careless", "fault": "draws"}
    assert "the update of main (its objectives, models, optimisers) drew from a global generator" in told(
        **{"part.policy.terms.own": objective}
    )


def test_an_objective_that_changes_its_batch_is_told(tmp_path: Path) -> None:
    objective = {"use": f"{HERE}.Careless", "fault": "in place"}
    with pytest.raises(
        ContractError, match=r"the update of main .* changed the column 'advantage' of the batch in place"
    ):
        rehearse(bandit(tmp_path, **{"part.policy.terms.own": objective}))


@pytest.mark.parametrize("name", sorted(ALL))
def test_nothing_is_said_of_those_that_keep_to_their_ports(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "shuhari"):
        rehearse(recipe(name, tmp_path))
    assert "generator" not in caplog.text


def test_a_sum_of_weights_tells_any_change_of_one() -> None:
    model = SimpleNamespace(module=torch.nn.Linear(3, 2))
    before = sum_weights({"policy": model, "scripted": object()})
    assert before == sum_weights({"policy": model})
    with torch.no_grad():
        model.module.weight[1, 1] = torch.nextafter(model.module.weight[1, 1], torch.tensor(9.0))
    assert before != sum_weights({"policy": model})

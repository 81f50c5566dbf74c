"""What a newcomer's mistake is told: the thing, the value, what was expected, and the nearest right one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shuhari.config.build import build_stage
from shuhari.config.evaluation import Evaluation
from shuhari.config.recipe import RecipeError, load
from shuhari.data import Request
from shuhari.desk.cli.dry import list_values
from shuhari.engines.local import Local
from shuhari.kernel import registry
from shuhari.learners.pieces import Meters
from shuhari.loop.checks import check_stages
from shuhari.loop.evaluation import score_models
from shuhari.models.experts import find_expert
from shuhari.models.tabular import Tabular
from shuhari.models.text.causal import Causal
from shuhari.needs import Need
from shuhari.tasks.bandit import Bandit
from shuhari.testing import ConformanceError, check_metric, check_recipe, context, groups, transitions

HERE = __name__


def test_a_column_of_a_model_names_needs() -> None:
    batch = groups([[1.0, 0.0]])
    for key in ("live/policy/log_prob", Need(("policy",), "log_prob")):
        with pytest.raises(KeyError, match=r"no column '.*policy/log_prob'; .* names it in its `needs`"):
            batch[key]


def test_batches_for_tests_carry_the_stream_of_what_is_drawn() -> None:
    for batch in (groups([[1.0, 0.0]]), transitions([[1.0, 0.0]])):
        assert torch.equal(batch.weight("rl"), batch["mask"].float())
    with pytest.raises(KeyError, match="no row is in the stream 'rl'"):
        groups([[1.0, 0.0]], stream=None).weight("rl")


@pytest.mark.parametrize("value", ["good", None, [1.0]])
def test_an_info_that_is_no_number(value: Any) -> None:
    batch = groups([[1.0, 0.0]])
    with pytest.raises(TypeError, match=r"term 'clip': its info 'mood' is .*: expected a number, or a Tensor"):
        Meters().add("clip", torch.zeros(()), {"mood": value}, batch)
    Meters().add("clip", torch.zeros(()), {"a": 1, "b": np.float32(1.0), "c": torch.ones(2, 3), "d": True}, batch)


@pytest.mark.parametrize(("hidden", "heads", "told"), [
    (16, 3, "hidden is 16 and heads 3: expected a hidden that is a multiple of heads, such as 15 or 18"),
    (15, 3, "hidden is 15 and heads 3: a head is 5 wide: expected an even width"),
    (2, 3, "hidden is 2 and heads 3: expected at most as many heads as hidden"),
])  # fmt: skip
def test_a_width_that_heads_cannot_share(hidden: int, heads: int, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Causal(hidden=hidden, heads=heads)
    Causal(hidden=18, heads=3)


def test_a_name_that_nobody_has_registered_tells_how_ones_own_are_named() -> None:
    with pytest.raises(LookupError, match=r"no objective 'sapo'; .*\(one of your own: file.py:name\)"):
        registry.find("objective", "sapo")


def idle(observation: Any, rng: Any) -> None:
    """A controller that forgets to return its action."""


def test_a_controller_that_returns_nothing() -> None:
    act = find_expert(Bandit(), f"{HERE}.idle")
    with pytest.raises(TypeError, match=rf"the policy '{HERE}.idle' returned None: expected an action"):
        act(0, np.random.default_rng(0))


@dataclass
class Reads:
    """A transform that wants a column."""

    wants: str = "advantge"
    needs = ()
    stamps = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.wants,)

    def __call__(self, batch: Any, ctx: Any) -> Any:
        return batch


def test_a_column_that_nothing_writes_yet_is_not_taken_for_the_right_word() -> None:
    own = {"collect.own": {"use": f"{HERE}.Reads", "before": "advantage"}}
    recipe = load("baselines/bandit").with_settings(own)
    shared: dict[str, Any] = {}
    with pytest.raises(RecipeError) as caught:
        check_stages([build_stage(table, shared) for table in recipe.stages])
    told = "did you mean 'advantage'? (which nothing before it writes either: the transforms 'advantage', "
    assert told in str(caught.value)
    assert "stamps = ('advantge',)" not in str(caught.value)


def test_a_dry_run_shows_what_stands() -> None:
    recipe = load("baselines/grpo").with_settings({"stage.rl.part.policy.terms.loss": {"use": "nll", "stream": "rl"}})
    found = list_values(recipe, {"rl": {"part.policy.terms.loss.score": "log_prob"}})
    rl = [text for text, _ in found["rl: what is changed"]]
    assert 'part.policy.terms.loss.use = "nll"' in rl
    rest = [text for text, _ in found["rl: the rest"]]
    assert "part.policy.terms.loss.high = 0.2" not in rest, "the stage has replaced it"
    assert 'part.policy.terms.loss.score = "log_prob"' in rest
    assert not any("nll" in text and ".loss." in text for text, _ in found["warm-up"])
    assert "part.policy.terms.loss.high = 0.2" in [text for text, _ in list_values(load("baselines/grpo"), {})["rl"]]


def served(**fields: Any) -> Any:
    model = Tabular()
    model.build(Bandit())
    return context(task=Bandit(), models={"policy": model}, engine=Local(), **fields)


@dataclass
class Probes:
    """A metric that has the policy play."""

    def __call__(self, ctx: Any) -> dict[str, float]:
        source = ctx.task.problems("test")
        batch = ctx.wait(ctx.probe([Request(source[i], 4) for i in range(4)], tag="probe"))
        return {"return": float(batch["reward/task"].mean())}


def test_a_metric_that_probes_is_checked_without_further_ado() -> None:
    assert 0.0 <= check_metric(Probes(), served(weights={"task": 1.0}))["return"] <= 1.0


def test_a_metric_that_is_not_a_number_is_told_once() -> None:
    ctx = served()
    evaluation = Evaluation(n=0, metrics={"own": lambda ctx: {"gap": float("nan"), "norm": 1.0}})  # type: ignore[dict-item]
    for ctx.step in (0, 5, 10):
        score_models(ctx, evaluation, ctx.rollout)
    assert ctx.problems == ["[evaluate.metrics.own] function gave gap as NaN, so that there is no number to report"]


OWN = """from dataclasses import dataclass

@dataclass
class Twice:
    needs = ()

    def __call__(self, batch, ctx):
        return batch.put({"reward": 2.0 * batch["reward"]})
"""
BANDIT = """steps = 2
task.name = "bandit"
models.policy.use = "tabular"
rollout.n = 4
buffer.size = 4
collect.own.use = "twice_own.py:Twice"
collect.advantage = {}
part.policy = {terms.loss = {use = "clip"}, optimiser.lr = 0.1}
"""


def test_a_recipe_s_class_is_the_one_that_a_test_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "twice_own.py").write_text(OWN)
    (tmp_path / "own.toml").write_text(BANDIT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import twice_own  # type: ignore[import-not-found]

    assert twice_own.Twice in check_recipe("own.toml", tmp_path / "runs")
    sys.modules.pop("twice_own")


@dataclass
class Late:
    """A loss of 0."""

    couples: str = "row"
    needs = ()

    def __call__(self, batch: Any, ctx: Any) -> Any:
        return 0.0 * batch["reward"], {}


def test_a_recipe_that_never_calls_a_component_is_no_check_of_it(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(BANDIT.replace("twice_own.py:Twice", f"{HERE}.Reads"))
    late = {
        "collect.own.wants": "reward",
        "part.late": {
            "trains": ["policy"],
            "after": 99,
            "terms": {"own": {"use": f"{HERE}.Late"}},
            "optimiser": {"lr": 0.1},
        },
    }
    with pytest.raises(ConformanceError, match="Late: the run of 2 steps never called it"):
        check_recipe(load(tmp_path / "own.toml").with_settings(late), tmp_path / "runs")

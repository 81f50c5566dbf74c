"""A recipe that was made for random weights says so where a trained model is set in it, before its first step; one that
was not says nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from buildable import FAMILY
from chat_models import save_chat
from shuhari.config.build import build_stages
from shuhari.config.library import list_names
from shuhari.config.recipe import RecipeError, load
from shuhari.desk.api import train
from shuhari.desk.cli.dry import dry_run
from shuhari.loop.tuned import find_highest, list_unfit, refuse_inherited_rates

PATH = "models.policy.path"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("tuned")
    save_chat(at / "model")
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1), "completion": str(i + 1)} for i in range(30)]
    pairs = [{"prompt": f"{i}+1=", "answer": str(i + 1), "chosen": str(i + 1), "rejected": str(i)} for i in range(30)]
    for name, table in {"rows": rows, "pairs": pairs}.items():
        (at / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    (at / "tools.py").write_text('def search(words: str) -> str:\n    """Find them."""\n    return words\n')
    return at


@pytest.fixture(autouse=True)
def there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    torch.set_num_threads(1)


def told(name: str, *sets: str, warm_up: bool = True) -> str:
    recipe = load(name, [f"{PATH}=model", *sets], remove=[] if warm_up else ["stage.warm-up"])
    return "\n".join(list_unfit(recipe, build_stages(recipe.stages)))


ROWS, PAIRS = "task.name=file/rows.jsonl", "task.name=file/pairs.jsonl"
LR = "part.policy.optimiser.lr"


def test_every_value_of_a_toy_is_named_with_the_recipe_that_is_meant() -> None:
    said = told("baselines/grpo", ROWS)
    assert said.startswith("models.policy is a trained model (model), and this is meant for random weights: ")
    for value in (
        f"{LR} is up to 0.002 in stage 'warm-up' (usual for all weights: 1e-05)",
        f"{LR} is up to 0.0007 in stage 'rl'",
        "stage 'warm-up' imitates",
        "rollout.sampling.max_new is 8",
        "models.policy.context is 256",
    ):
        assert said.count(value) == 1, (value, said)
    assert said.endswith(". pretrained/grpo has the usual values") and "\n" not in said


@pytest.mark.parametrize(
    ("name", "sets", "meant"),
    [
        ("baselines/sft_arithmetic", [ROWS], "pretrained/sft"),
        ("baselines/dpo", [PAIRS, "stage.warm-up.buffer.imitate=answer", "buffer.use=preferences"], "pretrained/dpo"),
        ("baselines/gspo", [ROWS], "pretrained/grpo"),
        ("baselines/rloo", [ROWS], "pretrained/grpo"),
        ("baselines/ppo", [ROWS], "pretrained/grpo"),
    ],
)
def test_the_recipe_that_is_meant_trains_by_the_same_terms(name: str, sets: list[str], meant: str) -> None:
    said = told(name, *sets)
    assert f"{LR} is up to " in said and said.endswith(f". {meant} has the usual values")


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("times", [10, 11])
def test_ten_times_the_usual_is_the_limit(lora: bool, times: int) -> None:
    usual = 2e-4 if lora else 1e-5
    sets = [ROWS, f"{LR}={usual * times}", "rollout.sampling.max_new=64"]
    said = told("baselines/grpo", *sets, "models.policy.context=512", *["models.policy.lora={rank = 2}"] * lora,
                warm_up=False)  # fmt: skip
    assert (f"(usual for {'adapters' if lora else 'all weights'}: {usual:g})" in said) == (times > 10)
    assert (not said) == (times == 10)


def test_what_a_user_says_is_meant() -> None:
    """A short answer that is set by hand is the user's own; so are stages and values of a file of theirs."""
    fine = [ROWS, f"{LR}=1e-5", "rollout.sampling.max_new=8", "models.policy.context=256"]
    assert not told("baselines/grpo", *fine, warm_up=False)
    assert "max_new" in told("baselines/grpo", *(s for s in fine if "max_new" not in s), warm_up=False)


def test_a_rate_that_nobody_chose_is_refused_if_it_ruins_a_trained_model(tmp_path: Path) -> None:
    own = {PATH: "model", "task.name": "file/rows.jsonl", "steps": 1, "buffer.size": 2, "evaluate.n": 0}
    with pytest.raises(RecipeError, match=r"stage\.warm-up.*meant for random weights.*pretrained/grpo has the usual"):
        train("baselines/grpo", tmp_path / "warm", **own)
    with pytest.raises(RecipeError) as refused:
        train("baselines/grpo", tmp_path / "rl", **own, remove=["stage.warm-up"])
    assert "0.0007" in str(refused.value) and LR in str(refused.value)
    assert not (tmp_path / "rl").exists()


@pytest.mark.parametrize("rate", [0.0007, {"from": 0.0007, "to": 0.0007}, 1e-5])
def test_a_rate_that_the_user_sets_is_run(rate: Any) -> None:
    recipe = load("baselines/grpo", [f"{PATH}=model", ROWS], remove=["stage.warm-up"]).with_settings({LR: rate})
    refuse_inherited_rates(recipe, build_stages(recipe.stages))


def test_random_weights_have_any_rate() -> None:
    recipe = load("baselines/grpo")
    assert not list_unfit(recipe, build_stages(recipe.stages))


def test_recipes_for_such_models_fit_them() -> None:
    for name in list_names():
        if name.startswith(FAMILY):
            role = "reward" if "reward" in load(name).tree["models"] else "policy"
            sets = [f"models.{role}.path=model", PAIRS if "pref" in str(load(name).tree["buffer"]) else ROWS]
            more = {"opd": ["models.teacher.path=model"], "agent": ['rollout.environments.tools=["tools.py:search"]']}
            recipe = load(name, [*sets, *more.get(name.removeprefix(FAMILY), [])])
            assert not list_unfit(recipe, build_stages(recipe.stages)), name
            high = recipe.with_settings({f"part.{role}.optimiser.lr": 0.1})
            (said,) = list_unfit(high, build_stages(high.stages))
            assert "is up to 0.1 (usual for adapters: 0.0002)" in said and "has the usual values" not in said


@pytest.mark.parametrize(
    ("rate", "highest"),
    [(3e-4, 3e-4), ({"from": 1e-3, "to": 0.0}, 1e-3), ({"from": 0, "to": 2}, 2), (None, 0.0),
     ({"from": 1e-3, "steps": [[5, 2e-3], [9, 1e-4]]}, 2e-3)],
)  # fmt: skip
def test_the_highest_rate(rate: Any, highest: float) -> None:
    assert find_highest(rate) == highest


def test_a_run_says_it_once_before_its_first_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = {PATH: "model", "task.name": "file/rows.jsonl", "steps": 1, "buffer.size": 2, "evaluate.n": 0}
    train("baselines/sft_arithmetic", tmp_path / "run", **own, **{LR: 2e-3})
    assert [r.levelname for r in caplog.records if "is a trained model" in r.message] == ["WARNING"]
    caplog.clear()
    train("baselines/sft_arithmetic", tmp_path / "other", **own, **{LR: 1e-5, "models.policy.context": 512})
    assert not [r for r in caplog.records if "is a trained model" in r.message]


def test_a_dry_run_says_what_the_run_would_say(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = load("baselines/grpo", [f"{PATH}=model", ROWS], remove=["stage.warm-up"])
    (refused,) = dry_run(recipe, Path("runs/none"))
    said = capsys.readouterr().err
    assert "stage.rl.part.policy.optimiser.lr: a rate of up to 0.0007" in refused
    assert "models.policy.context is 256" in said
    assert not dry_run(load("pretrained/grpo", [f"{PATH}=model", ROWS]), Path("runs/none"))

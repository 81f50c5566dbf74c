"""The recipes for pretrained models: with what each leaves to its user filled in it trains to its end, over a tiny chat
model; with any of that left out it says what to set."""

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
from shuhari.config.recipe import load
from shuhari.desk.api import train
from shuhari.desk.cli import main
from shuhari.loop.opening import open_models
from shuhari.loop.rehearsal import _cut, make_small
from shuhari.models.text.lora import merge_adapters
from shuhari.models.text.pretrained import load as load_model
from shuhari.store import Run

SCORERS = ("reward_model", "outcome_reward_model", "process_reward_model")
PAIRED = ("dpo", "cpo", "orpo", "simpo")
RECIPES = [name.removeprefix(FAMILY) for name in list_names() if name.startswith(FAMILY)]
SMALL = {"steps": 2, "buffer.size": 2, "evaluate.n": 2}
SAMPLES = {"rollout.n": 2}
TOOL = '''
def search(words: str) -> str:
    """Find words.

    words: what to find
    """
    return words
'''
ROWS = {
    "asked": [{"prompt": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(8)],
    "said": [{"prompt": f"What is {i} + 1?", "completion": f"It is {i + 1}."} for i in range(8)],
    "labels": [{"prompt": f"What is {i} + 1?", "completion": f"It is {i + 1}.", "label": i % 2} for i in range(8)],
    "steps": [
        {"prompt": f"What is {i} + 1?", "completions": ["Add.", f"It is {i}."], "labels": [True, False]}
        for i in range(8)
    ],
    "pairs": [
        {"prompt": f"What is {i} + 1?", "chosen": f"It is {i + 1}.", "rejected": f"It is {i}."} for i in range(8)
    ],
}
OF = {"sft": "said", "reward_model": "pairs", "outcome_reward_model": "labels", "process_reward_model": "steps"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("pretrained")
    save_chat(at / "model")
    save_chat(at / "large", hidden=32)
    for name, rows in ROWS.items():
        (at / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (at / "tools.py").write_text(TOOL)
    return at


@pytest.fixture(autouse=True)
def there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    torch.set_num_threads(1)


def find_role(name: str) -> str:
    return "reward" if name in SCORERS else "policy"


def filled(name: str) -> dict[str, Any]:
    """What a user sets of a recipe, and few steps."""
    of = find_role(name)
    rows = OF.get(name, "pairs" if name in PAIRED else "asked")
    own: dict[str, Any] = {f"models.{of}.path": "model", "task.name": f"file/{rows}.jsonl"}
    if name == "opd":
        own["models.teacher.path"] = "large"
    if name == "agent":
        own["rollout.environments.tools"] = ["tools.py:search"]
    return own


def small(name: str) -> dict[str, Any]:
    answers = {} if name in SCORERS else {"rollout.sampling.max_new": 4}
    return {**SMALL, **answers, "threads": 1} | (SAMPLES if name in ("grpo", "opd", "agent") else {})


def test_all_of_the_family_are_tested() -> None:
    assert sorted(RECIPES) == sorted(
        [*SCORERS, "agent", "cpo", "dpo", "grpo", "opd", "orpo", "sft", "simpo"]
    )


@pytest.mark.parametrize("name", RECIPES)
def test_it_trains_its_adapters_to_the_end(name: str, home: Path, tmp_path: Path) -> None:
    train(f"{FAMILY}{name}", tmp_path / "run", **filled(name), **small(name))
    run = Run(tmp_path / "run")
    assert run.status == "complete" and run.step == 2
    assert f"{find_role(name)}/lr" in run.metrics()
    assert ("policy/margin" in run.metrics()) == (name in PAIRED)  # which diagnosis reads
    trained = open_models(tmp_path / "run")[0][find_role(name)]
    base = load_model("model")[0].state_dict()
    merged = merge_adapters(trained.module.lm).state_dict()
    plain = merge_adapters(trained.module.lm, without=True).state_dict()
    assert all(torch.equal(plain[k], base[k]) for k in base), "the base stays as it was"
    moved = [k for k in base if not torch.equal(merged[k], base[k])]
    if name in (*PAIRED, "sft", *SCORERS):  # by random weights no answer is right, and nothing is learnt
        assert moved and all("proj" in k for k in moved)


@pytest.mark.parametrize(
    ("name", "key", "told"),
    [
        *((name, "task.name", 'set task.name = "file/') for name in RECIPES),
        *((name, f"models.{find_role(name)}.path", "which model?") for name in RECIPES),
        ("opd", "models.teacher.path", "which model?"),
        ("agent", "rollout.environments.tools", "as file.py:function"),
    ],
)
def test_what_is_left_to_the_user_is_named(
    name: str, key: str, told: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = {k: v for k, v in filled(name).items() if k != key}
    sets = [part for k, v in own.items() for part in ("--set", f"{k}={json.dumps(v)}")]
    with pytest.raises(SystemExit) as end:
        main(["train", f"{FAMILY}{name}", "--run", str(tmp_path / "run"), *sets])
    said = " ".join(capfd.readouterr().err.split())
    assert end.value.code == 2 and told in said, said
    assert key.rpartition(".")[0] in said and "Traceback" not in said and not (tmp_path / "run").exists()


# ---------------------------------------------------------------- how prompts are read


BRIEF = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "What is 3 + 1?"}


@pytest.mark.parametrize(
    ("sets", "messages"),
    [
        ({}, [ASKED]),
        ({"task.chat": True}, [ASKED]),
        ({"task.system": "Be brief."}, [BRIEF, ASKED]),
        ({"models.policy.system": "Be brief."}, [BRIEF, ASKED]),
        ({"models.policy.system": "Be brief.", "task.system": "Be long."}, [BRIEF, ASKED]),
        ({"task.chat": False}, None),
        ({"models.policy.chat": False}, None),
        ({"models.policy.chat": False, "task.chat": True}, None),
        ({"models.policy.chat": True, "task.chat": False}, [ASKED]),
    ],
)
def test_what_a_run_samples_behind_is_what_transformers_writes(
    sets: dict[str, Any], messages: list[Any] | None, tmp_path: Path
) -> None:
    """The model's own setting goes before the task's."""
    hf = load_model("model")[1].hf
    rows = tmp_path / "one.jsonl"
    rows.write_text(json.dumps({"prompt": ASKED["content"], "answer": "4", "split": "train"}))
    own = {**filled("opd"), **small("opd"), "task.name": f"file/{rows}", "steps": 1, "evaluate.n": 0, **sets}
    train("pretrained/opd", tmp_path / "run", **own)
    read = [t.steps[0].context for group in Run(tmp_path / "run").rollouts(1) for t in group["trajectories"]]
    how = {"add_generation_prompt": True, "return_dict": False}
    want = hf(ASKED["content"])["input_ids"] if messages is None else hf.apply_chat_template(messages, **how)
    assert read and all(ids.tolist() == list(want) for ids in read)


def test_how_prompts_are_read_is_told_before_the_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "shuhari")
    train("pretrained/sft", tmp_path / "run", **filled("sft"), **small("sft"))
    assert "models.policy: each prompt is a turn of a user, written by its chat template (task.chat" in caplog.text


@pytest.mark.parametrize("key", ["task.chat", "models.policy.chat"])
def test_a_model_without_a_template_cannot_chat(key: str, tmp_path: Path) -> None:
    save_chat(tmp_path / "base", template=None)
    own = {**filled("sft"), **small("sft"), "models.policy.path": str(tmp_path / "base"), key: True}
    with pytest.raises(ValueError, match=r"base.*no chat template: expected chat = false"):
        train("pretrained/sft", tmp_path / "run", **own)


def test_the_rehearsal_of_a_loaded_model_is_small() -> None:
    """Four tokens of an answer, one held-out problem, once; what is asked of a problem stays as it is."""
    recipe = make_small(load("pretrained/grpo", [f"{k}={json.dumps(v)}" for k, v in filled("grpo").items()]))
    (stage,) = build_stages(recipe.stages)
    cut = _cut(stage, False)
    assert cut.evaluate is not None and (cut.sampling.max_new, cut.evaluate.n, cut.evaluate.samples) == (4, 1, 1)
    assert cut.n == stage.n == 8 and stage.sampling.max_new == 256

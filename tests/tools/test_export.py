"""What `export` writes, read by other libraries: equal logits, and nothing that was there is lost."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import shuhari
from shuhari.config.recipe import load
from shuhari.desk.export import export
from shuhari.models.text.causal import Causal
from shuhari.store import Run, Store, StoreError

RECIPE = """
steps = 3
threads = 1
task = {name = "arithmetic", kind = "carry", digits = 1}
models.policy = {use = "causal", hidden = 16, layers = 2, heads = 2, intermediate = 16}
models.reference.init = "policy"
rollout = {n = 4, sampling.max_new = 3}
buffer.size = 3
collect.advantage.scale = "batch"
part.policy = {terms = {loss = {use = "clip"}, divergence = {}, entropy = {weight = 0.1}}, optimiser.lr = 1e-2}
evaluate = {every = 1, n = 4}
store = {every = 1, keep = 9}
"""
LORA = {"models.policy.lora": {"rank": 2, "alpha": 4}}
IDS = torch.tensor([[2, 3, 4, 5, 6, 7]])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs: `full`, `lora` with adapters from scratch, `upon` with adapters upon a directory."""
    home = tmp_path_factory.mktemp("export")
    (home / "r.toml").write_text(RECIPE)
    recipe = load(home / "r.toml")
    shuhari.train(recipe, home / "full")
    shuhari.train(recipe.with_settings(LORA), home / "lora")
    export(home / "full", home / "base")
    policy = {"use": "causal", "path": str(home / "base"), "lora": {"rank": 2, "alpha": 4}}
    shuhari.train(recipe.with_settings({"models.policy": policy}), home / "upon")
    return home


@torch.no_grad()
def ours(run: Path, **more: Any) -> torch.Tensor:
    module = shuhari.load(run, **more).model.module
    return module.lm(input_ids=IDS).logits


@torch.no_grad()
def theirs(path: Path | str, **more: Any) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, **more)(input_ids=IDS).logits


def test_transformers_reads_equal_logits_and_the_tokenizer(home: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    done = export(home / "full", tmp_path / "out", shard="10KB")
    assert (done.kind, done.step, done.role, done.path) == ("causal", 3, "policy", tmp_path / "out")
    assert done.files == {f.name: f.stat().st_size for f in (tmp_path / "out").iterdir()}
    assert (
        sum(name.endswith(".safetensors") for name in done.files) > 1 and "model.safetensors.index.json" in done.files
    )
    assert torch.equal(theirs(tmp_path / "out"), ours(home / "full"))
    model = shuhari.load(home / "full").model
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.encode("1+2=") == model.encode("1+2=").tolist() and tokenizer.eos_token_id == model.end
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == model.end
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert len({f.stat().st_mode for f in (tmp_path / "out").iterdir()}) == 1  # weights are read as the others are


def test_a_step_the_best_and_another_role(home: Path, tmp_path: Path) -> None:
    for step in (1, 2):
        assert export(f"{home / 'full'}@{step}", tmp_path / f"{step}").step == step
        assert torch.equal(theirs(tmp_path / f"{step}"), ours(home / "full", step=step))
    assert not torch.equal(theirs(tmp_path / "1"), theirs(tmp_path / "2"))
    scores = Run(home / "full").metrics()["evaluate/greedy"]
    best = 1 + scores.index(max(scores))
    assert export(f"{home / 'full'}@best", tmp_path / "best").step == best
    export(home / "full", tmp_path / "reference", role="reference")
    assert torch.equal(theirs(tmp_path / "reference"), ours(home / "full", role="reference"))
    assert not torch.equal(theirs(tmp_path / "reference"), ours(home / "full"))


def test_half_precision_is_the_weights_rounded(home: Path, tmp_path: Path) -> None:
    export(home / "full", tmp_path / "half", dtype="bfloat16")
    weights = safetensors.torch.load_file(tmp_path / "half" / "model.safetensors")
    whole = shuhari.load(home / "full").model.module.lm.state_dict()
    assert all(torch.equal(x, whole[name].bfloat16()) for name, x in weights.items()) and len(weights) > 10
    assert theirs(tmp_path / "half").dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["lora", "upon"])
def test_adapters_go_merged_or_alone(home: Path, tmp_path: Path, name: str) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    want = ours(home / name)
    export(home / name, tmp_path / "merged")
    torch.testing.assert_close(theirs(tmp_path / "merged"), want, atol=2e-5, rtol=1e-5)
    assert not torch.allclose(want, theirs(home / "base"), atol=1e-3)
    done = export(home / name, tmp_path / "alone", adapter=True)
    assert done.kind == "adapter" and ("base/model.safetensors" in done.files) == (name == "lora")
    base = tmp_path / "alone" / "base" if name == "lora" else home / "base"
    told = json.loads((tmp_path / "alone" / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == str(base)
    adapted = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "alone")
    with torch.no_grad():
        torch.testing.assert_close(adapted(input_ids=IDS).logits, want, atol=1e-6, rtol=1e-6)
    back = Causal(path=str(tmp_path / "alone"))  # and this library reads it, merged
    back.build(None)
    with torch.no_grad():
        torch.testing.assert_close(back.module.lm(input_ids=IDS).logits, want, atol=2e-5, rtol=1e-5)


def test_adapters_upon_the_weights_of_another_run_bring_their_base(home: Path, tmp_path: Path) -> None:
    """The directory that the recipe names does not hold what the run began with."""
    recipe = load(home / "upon")
    shuhari.train(recipe, tmp_path / "run", init=f"{home / 'full'}@1", steps=1)
    assert "base/model.safetensors" in export(tmp_path / "run", tmp_path / "alone", adapter=True).files
    assert torch.equal(theirs(tmp_path / "alone" / "base"), ours(home / "full", step=1))


def test_a_controller_goes_as_its_state_and_what_it_is(tmp_path: Path) -> None:
    small = {"buffer.size": 64, "rollout.lanes": 2, "part.policy.minibatches": 2, "evaluate.n": 2}
    run = shuhari.train("baselines/ppo_cartpole", tmp_path / "run", steps=1, **small)
    done = export(run.path, tmp_path / "out")
    assert done.kind == "controller" and set(done.files) == {"model.safetensors", "model.json", "written.json"}
    weights = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    own = shuhari.load(run.path).model.module.state_dict()
    assert weights.keys() == own.keys() and all(torch.equal(x, own[k]) for k, x in weights.items())
    card = json.loads((tmp_path / "out" / "model.json").read_text())
    assert card["task"]["name"] == "gym/CartPole-v1" and card["actions"] == "Discrete(2)"
    assert card["class"].startswith("shuhari.models.categorical.")
    assert {name: tuple(shape) for name, (_, shape) in card["tensors"].items()} == {
        k: tuple(x.shape) for k, x in own.items()
    }
    with pytest.raises(ValueError, match="the model of 'policy' is not a language model; expected float32"):
        export(run.path, tmp_path / "half", dtype="bfloat16")
    with pytest.raises(ValueError, match="the model of 'policy' has no adapters"):
        export(run.path, tmp_path / "half", adapter=True)
    assert not (tmp_path / "half").exists()


def test_nothing_is_overwritten_unless_it_is_a_model(home: Path, tmp_path: Path) -> None:
    full, out = home / "full", tmp_path / "out"
    out.mkdir()
    export(full, out, shard="10KB")  # empty
    before = theirs(out)
    with pytest.raises(FileExistsError, match="out is not empty: choose another directory, or replace an export"):
        export(f"{full}@1", out)
    assert torch.equal(theirs(out), before)
    export(f"{full}@1", out, force=True)
    assert torch.equal(theirs(out), ours(full, step=1)) and (out / "model.safetensors").is_file()
    assert not list(out.glob("model-*"))  # no shard of what was there
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("...")
    with pytest.raises(FileExistsError, match=r"precious holds what was not written there by shuhari \('thesis.tex'\)"):
        export(full, precious, force=True)
    with pytest.raises(FileExistsError, match="is a file"):
        export(full, precious / "thesis.tex", force=True)
    assert (precious / "thesis.tex").read_text() == "..."


@pytest.mark.parametrize("listed", [True, False])
def test_force_replaces_what_export_wrote_and_names_the_rest(home: Path, tmp_path: Path, listed: bool) -> None:
    full, out = home / "full", tmp_path / "out"
    export(full, out)
    if not listed:  # as before exports had a list
        (out / "written.json").unlink()
    export(f"{full}@1", out, force=True)
    (out / "src").mkdir()
    (out / "src" / "main.py").write_text("...")
    before = {f: f.read_bytes() for f in out.rglob("*") if f.is_file()}
    with pytest.raises(FileExistsError, match=r"\('src/main.py'\): nothing was changed"):
        export(full, out, force=True)
    (out / "src" / "main.py").rename(tmp_path / "main.py")
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(FileExistsError, match="is a link"):
        export(full, tmp_path / "link", force=True)
    assert {f: f.read_bytes() for f in out.rglob("*") if f.is_file()} == {f: x for f, x in before.items() if f.exists()}
    assert torch.equal(theirs(out), ours(full, step=1))


def test_a_project_with_a_config_json_is_no_model(home: Path, tmp_path: Path) -> None:
    for name in ("config.json", "thesis.tex"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(FileExistsError, match=r"thesis\.tex"):
        export(home / "full", tmp_path, force=True)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["config.json", "thesis.tex"]


def test_a_failure_leaves_what_was_there(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shuhari.models.text import pretrained

    out = tmp_path / "out"
    export(home / "full", out)
    before = theirs(out)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(pretrained, "save", full)
    with pytest.raises(StoreError, match="out cannot be written: no space: choose"):
        export(f"{home / 'full'}@1", out, force=True)
    assert torch.equal(theirs(out), before) and [p.name for p in tmp_path.iterdir()] == ["out"]


def test_mistakes_are_told(home: Path, tmp_path: Path) -> None:
    full = home / "full"
    for kwargs, told in (
        ({"run": f"{full}@7"}, r"no checkpoint of step 7; checkpoints there: steps 1, 2, 3, or `best`"),
        ({"run": f"{full}@last"}, "no checkpoint of step last; checkpoints there"),
        ({"run": home / "fulll"}, "no run "),
    ):
        with pytest.raises(StoreError, match=told):
            export(kwargs["run"], tmp_path / "out")
    for kwargs, told in (
        ({"role": "polcy"}, "has no role 'polcy'; did you mean 'policy'"),
        ({"dtype": "bfloat"}, "dtype is 'bfloat'; did you mean 'bfloat16'"),
        ({"shard": "2"}, "shard is '2': expected a size, such as 500MB or 2GB"),
        ({"adapter": True}, "has no adapters"),
        ({"directory": full / "model"}, "lies in the run"),
    ):
        with pytest.raises(ValueError, match=told):
            export(full, **{"directory": tmp_path / "out", **kwargs})
    with pytest.raises(ValueError, match="dtype is 'float16': adapters alone are written as they were trained"):
        export(home / "lora", tmp_path / "out", adapter=True, dtype="float16")
    with Store.open(tmp_path / "new") as store:
        store.write_text("recipe.toml", (full / "recipe.toml").read_text())
    with pytest.raises(StoreError, match="has no checkpoint yet: train it first"):
        export(tmp_path / "new", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_exported_is_a_model_to_start_from(home: Path, tmp_path: Path) -> None:
    recipe = load(home / "full").with_settings(
        {"models.policy": {"use": "causal", "path": str(home / "base")}, "steps": 1}
    )
    run = shuhari.train(recipe.with_settings({"part.policy.optimiser.lr": 1e-30}), tmp_path / "run")
    np.testing.assert_allclose(ours(run.path), ours(home / "full"), atol=1e-6)


@pytest.mark.parametrize("when", ["mkdir", "write"])
def test_a_place_that_cannot_be_written_is_told(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "/somewhere/else")

    monkeypatch.setattr(*((Path, "mkdir", refuse) if when == "mkdir" else (Causal, "save", refuse)))
    with pytest.raises(StoreError, match="out cannot be written: Read-only file system: choose a directory"):
        export(home / "full", tmp_path / "out")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []

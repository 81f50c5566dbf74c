"""A run as the path of a model: what it learnt, on the base that it began with. What is no model is told at once."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from chat_models import save_chat
from shuhari.desk.api import train
from shuhari.desk.export import export
from shuhari.models.text import pretrained
from shuhari.store import Run

pytest.importorskip("peft")
LORA = {"rank": 2, "alpha": 4, "targets": ["q_proj", "up_proj"]}
FEW: dict[str, Any] = {"steps": 2, "buffer.size": 2, "evaluate.n": 0, "threads": 1, "part.policy.optimiser.lr": 0.01}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs `adapted` and `whole` of one base; `random`, of random weights."""
    at = tmp_path_factory.mktemp("stored")
    rows = [{"prompt": f"{i}+1=", "completion": str(i + 1)} for i in range(8)]
    (at / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {"models.policy.path": str(save_chat(at / "base")), "task.name": f"file/{at}/rows.jsonl", **FEW}
    train("pretrained/sft", at / "adapted", **own, **{"models.policy.lora": LORA})
    train("baselines/sft_arithmetic", at / "whole", **own)
    train("baselines/sft_arithmetic", at / "random", **FEW, **{"models.policy.hidden": 16, "models.policy.heads": 2})
    return at


@pytest.fixture(autouse=True)
def there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["adapted", "whole"])
def test_it_is_what_export_writes(name: str, home: Path, tmp_path: Path) -> None:
    export(home / name, tmp_path / "out")
    lm, text = pretrained.load(str(home / name))
    again, words = pretrained.load(str(tmp_path / "out"))
    base = pretrained.load("base")[0].state_dict()
    mine, told = lm.state_dict(), again.state_dict()
    assert mine.keys() == told.keys() and all(torch.equal(mine[k], told[k]) for k in told)
    moved = {k.split(".")[-2] for k in base if not torch.equal(base[k], mine[k])}
    assert moved == {"q_proj", "up_proj"} if name == "adapted" else "embed_tokens" in moved
    assert all(p.requires_grad for p in lm.parameters()) and text.end == words.end and text.chat


def test_a_run_goes_on_from_a_run_of_a_run(home: Path, tmp_path: Path) -> None:
    """With adapters of its own, over the merged ones; without a checkpoint of its own base."""
    own = {"task.name": "file/rows.jsonl", **FEW, "models.policy.lora": LORA}
    train("pretrained/sft", tmp_path / "second", **own, **{"models.policy.path": "adapted"})
    assert Run(tmp_path / "second").status == "complete"
    first, second = (pretrained.load(str(p))[0].state_dict() for p in (home / "adapted", tmp_path / "second"))
    assert {k.split(".")[-2] for k in first if not torch.equal(first[k], second[k])} == {"q_proj", "up_proj"}


def refused(path: Path | str, kind: type[Exception] = ValueError) -> str:
    began = time.monotonic()
    with pytest.raises(kind) as error:
        pretrained.load(str(path))
    assert time.monotonic() - began < 10 and str(path) in str(error.value)
    return str(error.value)


def test_a_run_of_random_weights_is_told_what_to_do() -> None:
    said = refused("random")
    assert "began with random weights: give what `shuhari export random DIR` writes" in said and "--init random" in said


def test_a_run_whose_base_is_gone_or_another(home: Path, tmp_path: Path) -> None:
    for name, change in (("gone", "nowhere"), ("another", str(save_chat(tmp_path / "wide", hidden=32)))):
        run = Path(shutil.copytree(home / "adapted", tmp_path / name))
        file = run / "recipe.toml"
        file.write_text(file.read_text().replace(str(home / "base"), change))
        said = refused(run)
        assert ("nowhere', and there is no such file or directory" if name == "gone" else "do not fit its base") in said
    itself = Path(shutil.copytree(home / "adapted", tmp_path / "itself"))
    file = itself / "recipe.toml"
    file.write_text(file.read_text().replace(str(home / "base"), str(itself)))
    assert "began with a run that began with it" in refused(itself)


def test_a_run_without_a_checkpoint_and_one_that_is_damaged(home: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(home / "whole", tmp_path / "bare"))
    for file in (run / "checkpoints").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    assert "cannot be read" in refused(run)


# ---------------------------------------------------------------- adapters, tokenizers, the hub


def adapters(of: Path, at: Path, base: Path) -> Path:
    """Adapters of one model that say that their base is another."""
    import peft
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(of)
    peft.get_peft_model(lm, peft.LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(at)
    table = json.loads((at / "adapter_config.json").read_text())
    (at / "adapter_config.json").write_text(json.dumps({**table, "base_model_name_or_path": str(base)}))
    return at


def test_adapters_of_another_base(home: Path, tmp_path: Path) -> None:
    """Of one that is wider, of one whose layers have other names, of one that has fewer layers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    wide = adapters(home / "base", tmp_path / "a", save_chat(tmp_path / "wide", hidden=32))
    assert "do not fit their base" in refused(wide)
    shutil.copytree(home / "base", tmp_path / "gpt2")
    (tmp_path / "gpt2" / "model.safetensors").unlink()
    size = len(pretrained.load("base")[1].hf)
    GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=size)).save_pretrained(tmp_path / "gpt2")
    said = refused(adapters(home / "base", tmp_path / "b", tmp_path / "gpt2"))
    assert "q_proj" in said
    shallow = adapters(home / "base", tmp_path / "c", save_chat(tmp_path / "shallow", num_hidden_layers=1))
    assert "do not fit their base" in refused(shallow)


def test_a_missing_tokenizer(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "base", tmp_path / "mute", ignore=shutil.ignore_patterns("token*", "special*", "chat*"))
    assert "has no tokenizer: copy tokenizer.json and tokenizer_config.json there" in refused(tmp_path / "mute")


@pytest.fixture
def cache(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub in which one model lies, without a network."""
    import huggingface_hub.constants as constants

    hub = tmp_path / "hf" / "hub"
    at = hub / "models--me--tiny"
    (at / "refs").mkdir(parents=True)
    (at / "refs" / "main").write_text("c0ffee" * 6 + "c0ff")
    shutil.copytree(home / "base", at / "snapshots" / ("c0ffee" * 6 + "c0ff"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.setattr(constants, name, str(hub))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return at


def test_what_was_fetched_before_works_without_a_network(home: Path, cache: Path) -> None:
    began = time.monotonic()
    lm, text = pretrained.load("me/tiny")
    assert time.monotonic() - began < 10 and text.chat
    base = pretrained.load(str(home / "base"))[0].state_dict()
    assert all(torch.equal(base[k], x) for k, x in lm.state_dict().items())


def test_an_id_without_a_network_is_told_in_seconds(cache: Path) -> None:
    said = refused("me/other", FileNotFoundError)
    assert "no directory 'me/other' (looked in " in said and "no model of the hub: " in said


def test_a_model_that_is_loaded_again_is_compared_with_transformers_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which its rehearsal does; another model of the same layout is compared again. The logits are the same."""
    from types import SimpleNamespace

    from shuhari.models.text.causal import Causal
    from shuhari.models.text.layouts import Lean

    compared, check = list[int](), Lean._check
    monkeypatch.setattr(Lean, "_check", lambda self: (compared.append(1), check(self))[1])
    monkeypatch.setattr("shuhari.models.text.causal._SURE", set())
    ids = torch.arange(9)[None]
    said = []
    for path in (home / "base", home / "base", home / "whole"):
        model = Causal(path=str(path))
        model.build(SimpleNamespace())
        assert model.module.lean is not None and not model.module.why
        said.append((len(compared), model.module.lm(ids).logits))
    assert [n for n, _ in said] == [1, 1, 2] and torch.equal(said[0][1], said[1][1])

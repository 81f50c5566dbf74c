"""Hugging Face directories as users have them: read to the same logits, or refused with what to do."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from shuhari.batch import Batch
from shuhari.data import Problem, Request, Sampling, Step, Trajectory
from shuhari.kernel.noise import CounterNoise, keys
from shuhari.kernel.pack import pack
from shuhari.models.text.causal import Causal
from shuhari.models.text.expressions import explain_slow
from shuhari.models.text.made_tokenizers import bpe_tokenizer
from shuhari.models.text.tokenizers import Template, Tokenizer
from shuhari.models.text.trunk import describe_wreck

pytestmark = pytest.mark.filterwarnings("ignore:.*no lean forward for layout")

SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 24, "max_position_embeddings": 48, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1,
}  # fmt: skip
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 48}
MOE = {"num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
OTHERS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {},
    "gemma": {},
    "gemma3_text": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": GPT2,
    "mistral": {},
    "phi": {"num_key_value_heads": 4},
    "olmo2": {},
    "smollm3": {},
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {**MOE, "shared_expert_intermediate_size": 16},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": 16},
    "bloom": {},
}
PROMPT = "hello 12"


@pytest.fixture(scope="module")
def text() -> Tokenizer:
    return bpe_tokenizer(["hello world 12+34=46 abc"] * 50, 270)


def config(name: str, size: int, **more: Any) -> Any:
    usual = AutoConfig.for_model(name)
    known = {k: v for k, v in {**SIZES, "vocab_size": size}.items() if hasattr(usual, k)}
    return AutoConfig.for_model(name, **{**known, **more})


def network(name: str, size: int, **more: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lm = AutoModelForCausalLM.from_config(config(name, size, **more)).eval()
        for p in lm.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.2)
    return lm


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, text: Tokenizer) -> Path:
    """A llama in shards, with tokenizer."""
    path = tmp_path_factory.mktemp("hf") / "llama"
    network("llama", text.size).save_pretrained(path, max_shard_size="10KB")
    text.save(str(path))
    assert len(list(path.glob("*.safetensors"))) > 2
    return path


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "llama"))


def loaded(path: Path, **fields: Any) -> Causal:
    model = Causal(path=str(path), **fields)
    model.build(SimpleNamespace())
    return model


def drop(place: Path, *patterns: str) -> None:
    for pattern in patterns:
        for file in place.glob(pattern):
            file.unlink()


def settings(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@torch.no_grad()
def logits(lm: Any, ids: Any) -> torch.Tensor:
    return lm(input_ids=torch.as_tensor(np.asarray(ids, np.int64))[None]).logits[0].float()


def taken(lm: Any, context: Any, action: Any) -> torch.Tensor:
    p = logits(lm, np.concatenate([context, action]))[len(context) - 1 : -1].log_softmax(-1)
    return p.gather(-1, torch.as_tensor(action.astype(np.int64))[:, None])[:, 0]


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize("name", OTHERS)
def test_an_architecture_in_shards_samples_by_its_own_logits_and_goes_out_again(
    name: str, text: Tokenizer, tmp_path: Path
) -> None:
    lm = network(name, text.size, **OTHERS[name])
    lm.save_pretrained(tmp_path / "in", max_shard_size="10KB")
    text.save(str(tmp_path / "in"))
    model = loaded(tmp_path / "in")
    contexts = [model.encode(t) for t in (PROMPT, "wor", PROMPT)]
    for c, t in zip(
        contexts, model.sample(contexts, Sampling(max_new=5), noise=CounterNoise(keys(0, n=3))), strict=True
    ):
        torch.testing.assert_close(torch.from_numpy(t.logp), taken(lm, c, t.action), atol=1e-4, rtol=1e-4)
    model.save(tmp_path / "out", shard="10KB")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    own = lm.state_dict()
    assert again.state_dict().keys() == own.keys()
    assert all(torch.equal(x, own[k]) for k, x in again.state_dict().items())
    torch.testing.assert_close(logits(again, contexts[0]), logits(lm, contexts[0]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_read_as_float32_and_written_as_asked(place: Path, tmp_path: Path, dtype: str) -> None:
    half = AutoModelForCausalLM.from_pretrained(place).to(getattr(torch, dtype))
    drop(place, "*.safetensors", "*.index.json")
    half.save_pretrained(place)
    model = loaded(place)
    own = model.module.lm
    assert {p.dtype for p in own.parameters()} == {torch.float32}
    assert all(torch.equal(a, b.float()) for a, b in zip(own.parameters(), half.parameters(), strict=True))
    model.save(tmp_path / "out", dtype=dtype)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert again.dtype == getattr(torch, dtype)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), half.parameters(), strict=True))
    assert {p.dtype for p in own.parameters()} == {torch.float32}  # the model itself stays as it is


def test_a_text_ends_at_any_of_the_end_tokens(place: Path) -> None:
    more = [1, 70, 80, 90, 100, 110, 120, 130, 140, 150, 160, 170, 180, 190]
    settings(place / "generation_config.json", eos_token_id=more)
    model = loaded(place)
    assert model.text.ends == tuple(more) and model.end == 1
    n = 200
    contexts = [model.encode(PROMPT)] * n
    traces = model.sample(contexts, Sampling(max_new=12, temperature=2.0), noise=CounterNoise(keys(0, n=n)))
    for t in traces:
        assert t.info["ended"] == (t.action[-1] in more) and not np.isin(t.action[:-1], more).any()
        assert t.info["ended"] or len(t.action) == 12
    assert len({int(t.action[-1]) for t in traces if t.info["ended"]}) > 3
    assert model.decode(np.array([75, 90], np.int32)) == model.decode(np.array([75], np.int32))


def test_a_single_end_that_nobody_chose_is_not_taken_for_one(place: Path) -> None:
    settings(
        place / "generation_config.json", eos_token_id=77
    )  # the default of a configuration: an ordinary token here
    assert loaded(place).text.ends == (1,)
    settings(place / "tokenizer_config.json", eos_token=None)
    assert loaded(place).text.ends == (77,)


def test_without_a_padding_token_or_with_one_the_model_has_not(place: Path) -> None:
    model = loaded(place)
    assert model.text.pad == 0
    settings(place / "tokenizer_config.json", pad_token=None)
    assert loaded(place).text.pad == 1
    tokenizer = AutoTokenizer.from_pretrained(place)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})  # and the embeddings were not resized
    tokenizer.save_pretrained(place)
    model = loaded(place)
    assert model.text.pad == 1
    a, b = model.encode(PROMPT), model.encode("w")
    request = Request(Problem("t", "0", ""))
    batch: Batch = pack([Trajectory(request, (Step.of(c, np.array([5, 6], np.int32)),)) for c in (a, b)])
    want = torch.stack([taken(model.module.lm, c, np.array([5, 6])) for c in (a, b)])
    torch.testing.assert_close(model(batch).log_prob().detach(), want, atol=1e-5, rtol=1e-5)
    with pytest.raises(
        ValueError, match=r"token '\[PAD\]' \(id 270\) of 'a\[PAD\]' is beyond the vocabulary.*expected an id below 270"
    ):
        model.encode(Template("a[PAD]"))


def test_a_chat_template_is_used_and_its_refusal_told(place: Path) -> None:
    (place / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    model = loaded(place)
    said = ({"role": "user", "content": "hi"},)
    assert model.decode(model.encode(said)) == "<user>hi<assistant>"
    with pytest.raises(ValueError, match="refuses messages of system, user: no system here"):
        model.encode(({"role": "system", "content": "x"}, *said))


@pytest.mark.parametrize("where", ["absolute", "inside"])
def test_adapters_are_read_merged_into_their_base(place: Path, tmp_path: Path, where: str) -> None:
    peft = pytest.importorskip("peft")
    lm = AutoModelForCausalLM.from_pretrained(place)
    adapted = peft.get_peft_model(
        lm, peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    )
    there = tmp_path / "adapters"
    adapted.save_pretrained(there)
    told = {"absolute": str(place), "inside": "base"}[where]
    if where == "inside":
        shutil.copytree(place, there / "base")
    settings(there / "adapter_config.json", base_model_name_or_path=told)
    model = loaded(there)
    ids = model.encode(PROMPT)
    torch.testing.assert_close(logits(model.module.lm, ids), logits(adapted, ids), atol=1e-5, rtol=1e-5)
    assert all(p.requires_grad for p in model.module.parameters())
    model.save(tmp_path / "out")
    assert torch.equal(
        logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out"), ids), logits(model.module.lm, ids)
    )
    settings(there / "adapter_config.json", base_model_name_or_path="org/base")
    with pytest.raises(
        ValueError, match="holds adapters of 'org/base', which is not a directory: set base_model_name_or_path"
    ):
        loaded(there)
    (there / "adapter_model.safetensors").rename(there / "adapter_model.bin")
    with pytest.raises(ValueError, match=r"\(adapter_model.bin\) are a pickle"):
        loaded(there)


# ---------------------------------------------------------------- what is refused


def pickled(place: Path) -> None:
    drop(place, "*.safetensors", "*.index.json")
    (place / "pytorch_model.bin").write_bytes(b"PK")


def classifier(place: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    lm = AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(place))
    drop(place, "*.safetensors", "*.index.json")
    lm.save_pretrained(place)


def nested(place: Path) -> None:
    (place / "checkpoint-500").mkdir()
    (place / "config.json").rename(place / "checkpoint-500" / "config.json")


def words(place: Path) -> None:
    bpe_tokenizer(["qwertz uiop hello world"] * 90, 280).save(str(place))


def index(table: Any) -> Callable[[Path], object]:
    def change(place: Path) -> None:
        (place / "pytorch_model.bin").write_bytes(b"PK")
        settings(place / "model.safetensors.index.json", weight_map=table)

    return change


REPEATS = {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": ""}
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no tokenizer": (lambda p: drop(p, "tokenizer*"), "has no tokenizer: copy tokenizer.json and"),
    "no config": (lambda p: drop(p, "config.json"), "is no model: it has no config.json$"),
    "no weights": (
        lambda p: drop(p, "*.safetensors", "*.index.json"),
        "has no weights: expected model.safetensors, or",
    ),
    "a shard less": (
        lambda p: drop(p, "model-00002*"),
        "1 of [0-9]+ files of weights are missing, such as model-00002",
    ),
    "a pickle": (pickled, r"\(pytorch_model.bin\) are a pickle, .*from_pretrained\(OLD\).save_pretrained\(NEW\)"),
    "no head": (
        classifier,
        "1 of the model's weights are not there, such as lm_head.weight: expected those of a causal",
    ),
    "quantised": (
        lambda p: settings(p / "config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
        r"is quantised \(gptq\): expected weights of float32",
    ),
    "code": (
        lambda p: settings(p / "config.json", model_type="mine", auto_map={"AutoConfig": "a.B"}),
        "model_type 'mine' is no causal architecture of transformers, and brings code of its own, which is never run",
    ),
    "misspelt": (lambda p: settings(p / "config.json", model_type="lama"), "architecture of .*; did you mean 'llama'"),
    "no JSON": (lambda p: (p / "config.json").write_text("{"), "config.json: Expecting property name"),
    "sizes": (
        lambda p: settings(p / "config.json", vocab_size=200),
        r"weight is \(270, 16\) in its weights, \(200, 16\) by its config.json",
    ),
    "another tokenizer": (words, "its tokenizer has ids up to 2[0-9]+, its model 270 embeddings"),
    "GGUF": (lambda p: ((p / "m.gguf").touch(), drop(p, "*.json")), "give the file itself"),
    "a run": (lambda p: ((p / "run.sqlite").touch(), drop(p, "*.json")), "it is a run: start from it by `--init"),
    "further in": (nested, r"no config.json \(but checkpoint-500 in it has\)"),
    # hostile: each of these hung, filled the memory, read a pickle, or ended in an error without a path
    "an index of pickles": (index({"a": "pytorch_model.bin"}), "names 'pytorch_model.bin': expected files"),
    "an index that leads out": (index({"a": "../o.safetensors"}), "names '../o.safetensors': expected files"),
    "an index of nothing": (index({}), "weight_map is {}: expected names of tensors"),
    "an index of lists": (index([]), r"weight_map is \[\]: expected names of tensors"),
    "an index of numbers": (index({"a": 1}), "weight_map is .*: expected names of tensors"),
    "damaged weights": (lambda p: next(p.glob("model-00002*")).write_bytes(b"x" * 64), "cannot be read as a safetens"),
    "cut weights": (lambda p: os.truncate(next(p.glob("model-00002*")), 400), "cannot be read as a safetensors file"),
    "many layers": (
        lambda p: settings(p / "config.json", num_hidden_layers=50_000, layer_types=None),
        "num_hidden_layers is 50000 by its config.json: expected 1 to ",
    ),
    "no layers": (lambda p: settings(p / "config.json", num_hidden_layers=-1), "num_hidden_layers is -1: expected a"),
    "width": (lambda p: settings(p / "config.json", hidden_size=10**6), "config.json, and [0-9,]+ in its weights"),
    "words": (lambda p: settings(p / "config.json", vocab_size=10**10), "config.json, and [0-9,]+ in its weights"),
    "NaN": (lambda p: settings(p / "config.json", rms_norm_eps=math.nan), "rms_norm_eps is nan: expected a number"),
    "text for a size": (lambda p: settings(p / "config.json", hidden_size="wide"), "cannot be read: "),
    "a list": (lambda p: (p / "config.json").write_text("[]"), "config.json: expected a table, found list"),
    "a pit": (lambda p: (p / "config.json").write_text("[" * 100_000), "config.json: "),
    "a tokenizer of junk": (lambda p: (p / "tokenizer.json").write_text('{"model": 3}'), "its model has"),
    "a tokenizer that takes forever": (
        lambda p: settings(p / "tokenizer.json", normalizer=REPEATS),
        r"tokenizer.json: the regular expression '\(a\+\)\+b': it repeats a group that repeats",
    ),
    "a model and adapters": (lambda p: (p / "adapter_config.json").write_text("{}"), "holds a model and adapters"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_work_is_told(place: Path, why: str) -> None:
    change, told = REFUSED[why]
    change(place)
    with pytest.raises(ValueError, match=told) as error:
        loaded(place)
    assert str(place) in str(error.value)


def test_the_nearest_directory_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("We couldn't connect\nto the hub")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    with pytest.raises(FileNotFoundError, match=r"lamma' \(looked in .*; did you mean 'llama'\?\)$"):
        loaded(place.with_name("lamma"))
    monkeypatch.chdir(place.parent)
    with pytest.raises(
        FileNotFoundError, match=r"did you mean 'llama'\?\), and no model of the hub: We couldn't connect$"
    ):
        loaded(Path("lamma"))


@pytest.mark.parametrize("name", ["mamba", "bert"])
def test_an_architecture_that_cannot_be_sampled_row_by_row_is_refused(name: str) -> None:
    more = {"config": {"state_size": 4}} if name == "mamba" else {"config": {"is_decoder": False}}
    model = Causal(architecture=name, hidden=16, layers=1, heads=2, intermediate=16, context=16, **more)
    with pytest.raises(ValueError, match=f"architecture '{name}' .*: not supported"):
        model.build(SimpleNamespace(alphabet="abc"))


def test_reading_and_writing_show_no_bars_and_leave_the_log_as_it_was(place: Path, tmp_path: Path, capfd: Any) -> None:
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    loaded(place).save(tmp_path / "out")
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


@pytest.fixture
def adapters(place: Path, tmp_path: Path) -> Path:
    peft = pytest.importorskip("peft")
    lm = AutoModelForCausalLM.from_pretrained(place)
    peft.get_peft_model(lm, peft.LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path / "adapters")
    settings(tmp_path / "adapters" / "adapter_config.json", base_model_name_or_path=str(place))
    return tmp_path / "adapters"


def indexed(place: Path) -> None:
    (place / "adapter_model.safetensors").rename(place / "adapter_model.bin")
    (place / "adapter_model.safetensors.index.json").write_text('{"weight_map": {"a": "adapter_model.bin"}}')


HOSTILE: dict[str, tuple[dict[str, Any] | Callable[[Path], object], str]] = {
    "expression": ({"target_modules": "((([a-z.0-9_]+)+)+)+!"}, "target_modules has .*: expected names of layers"),
    "ranks by expression": ({"rank_pattern": {"(a+)+": 4}}, r"rank_pattern has '\(a\+\)\+'"),
    "another kind": ({"peft_type": "VERA"}, "peft_type is 'VERA': expected 'LORA'"),
    "rank": ({"r": 10**9}, "a rank is 1000000000: expected 1 to"),
    "layers": ({"layer_replication": [[0, 2]] * 9}, "layer_replication is .*: expected adapters without it"),
    "a module to import": ({"megatron_core": "antigravity"}, "megatron_core is 'antigravity': expected adapters with"),
    "pickle": (indexed, "names 'adapter_model.bin': expected files"),
}


@pytest.mark.parametrize("why", HOSTILE)
def test_hostile_adapters_are_refused(adapters: Path, why: str) -> None:
    change, told = HOSTILE[why]
    change(adapters) if callable(change) else settings(adapters / "adapter_config.json", **change)
    with pytest.raises(ValueError, match=told) as error:
        loaded(adapters)
    assert str(adapters) in str(error.value)


def test_adapters_of_each_other_are_refused(adapters: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(adapters, tmp_path / "other"))
    settings(adapters / "adapter_config.json", base_model_name_or_path=str(other))
    settings(other / "adapter_config.json", base_model_name_or_path=str(adapters))
    with pytest.raises(ValueError, match="holds adapters of a base that holds adapters of it"):
        loaded(adapters)


def test_a_model_of_the_hub_is_a_snapshot_that_is_checked_like_any_other(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def snapshot(name: str, **how: Any) -> str:
        asked.append((name, how["revision"]))
        assert "*.bin" not in how["allow_patterns"]
        return str(place)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: SimpleNamespace(sha="c0ffee"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    loaded(Path("org/model"))
    assert asked == [("org/model", "c0ffee")]
    index({"a": "pytorch_model.bin"})(place)
    with pytest.raises(ValueError, match=r"names 'pytorch_model\.bin'"):
        loaded(Path("org/model"))


def test_a_hub_that_does_not_answer_is_waited_for_no_longer_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: ended.wait(60))
    monkeypatch.setattr("shuhari.models.text.hub.REACH", 0.05)
    with pytest.raises(FileNotFoundError, match=r"no model of the hub: it did not answer within 0\.1 s"):
        loaded(Path("org/model-that-is-not-there"))
    ended.set()


@pytest.mark.parametrize(
    ("pattern", "hangs"),
    [
        (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", False),
        (r"(?i:'s|'t)|[^\r\n\p{L}]?\p{L}++|\p{N}{1,3}| ?[^\s]+[\r\n]*|\s*[\r\n]+", False),
        (r"(?=(\d{3})+(?!\d))|(a+)?b+|[(+)+]+|\(a+\)+|(a+b)c*", False),
        ("(a+)+", True), ("((ab*)c)*d", True), ("(?:a{2,})+", True), ("(a*){3,}", True), (r"([^()]+)*", True),
        ("(a|aa)+$", True), ("(a{1,30}){1,30}b", True), (r"(\w|\d)*", True), (r"(a)\1", True), ("(?:(?:a|b)?c)+", True),
        (r"(?:\r\n|\n)+|\d{1,3}(?=(?:\d{3})*\b)|(a|b)+|(?:ab){2,3}", False), ("((a|ab))*", True),
    ],
)  # fmt: skip
def test_which_expressions_repeat_what_repeats(pattern: str, hangs: bool) -> None:
    assert bool(explain_slow(pattern)) is hangs


def test_damaged_weights_are_named_and_no_architecture_is_blamed(text: Tokenizer, tmp_path: Path) -> None:
    lm = network("llama", text.size)
    with torch.no_grad():
        lm.model.layers[1].mlp.up_proj.weight[3, 2] = float("nan")
    lm.save_pretrained(tmp_path)
    text.save(str(tmp_path))
    with pytest.raises(ValueError, match=r"damaged: model\.layers\.1\.mlp\.up_proj\.weight has NaN or Inf"):
        loaded(tmp_path)
    with torch.no_grad():
        lm.model.norm.weight[0] = float("inf")
    assert "up_proj.weight and 1 more has NaN or Inf" in describe_wreck(lm)
    assert describe_wreck(network("llama", text.size)) == ""

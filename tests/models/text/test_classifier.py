"""Reward models go out and come in as transformers has them: equal scores, and hostile directories are refused."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from shuhari import testing
from shuhari.config.build import make_component
from shuhari.config.overlay import RecipeError
from shuhari.data import FrozenDict, Problem, Request, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.models.text import classifier
from shuhari.models.text.causal import Causal
from shuhari.models.text.made_tokenizers import bpe_tokenizer
from shuhari.rewards.reward_model import RewardModel

SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 24, "n_embd": 16, "n_layer": 2, "n_head": 2, "max_position_embeddings": 40, "n_positions": 40,
}  # fmt: skip
# each is the same tokens in one piece as in two
TEXTS = [("hello", " 12"), ("12+34=", "46 abc"), ("a", "")]


def build(folder: Path, name: str, bias: float = 0.0) -> Causal:
    """A reward model with random weights, upon a language model of an architecture."""
    text = bpe_tokenizer(["hello world 12+34=46 abc"] * 50, 270)
    usual = AutoConfig.for_model(name)
    known = {k: v for k, v in {**SIZES, "vocab_size": text.size}.items() if hasattr(usual, k)}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lm = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **known)).eval()
        for p in lm.parameters():
            torch.nn.init.normal_(p, std=0.2)
        lm.save_pretrained(folder / "lm")
        text.save(str(folder / "lm"))
        model = Causal(path=str(folder / "lm"), value_head=True, after="last")
        model.build(SimpleNamespace())
        torch.nn.init.normal_(model.module.value.weight)
        torch.nn.init.constant_(model.module.value.bias, bias)
    return model


@torch.no_grad()
def score(model: Causal) -> list[float]:
    """What it says of TEXTS, as training sees it: the sum of the values of a row's decisions."""
    rows = []
    for prompt, said in TEXTS:
        action = np.append(model.text.encode(said) if said else np.zeros(0, np.int32), np.int32(model.end))
        step = Step.of(model.encode(prompt), action, np.zeros(len(action), np.float32))
        rows.append(Trajectory(Request(Problem("t", prompt, prompt)), (step,)))
    batch = pack(rows)
    value = model(batch).value()
    assert ((value != 0).sum(1) == 1).all()  # of a row one decision alone has a value
    return value.sum(1).tolist()


@torch.no_grad()
def theirs(path: Path) -> list[float]:
    hf = AutoModelForSequenceClassification.from_pretrained(path)
    assert hf.config.num_labels == 1
    tokenizer = AutoTokenizer.from_pretrained(path)
    texts = [f"{prompt}{said}{tokenizer.eos_token}" for prompt, said in TEXTS]
    return hf(**tokenizer(texts, return_tensors="pt", padding=True)).logits[:, 0].tolist()


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2"])
def test_scores_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = build(tmp_path, name)
    model.save_scorer(tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.bin"))
    ours = score(model)
    assert np.ptp(ours) > 0.1
    np.testing.assert_allclose(theirs(tmp_path / "out"), ours, atol=1e-5)
    found = classifier.load(str(tmp_path / "out"))
    ids = [found.encode(prompt, said) for prompt, said in TEXTS]
    np.testing.assert_allclose(found.score(ids, rows=2), ours, atol=1e-5)
    assert not any(p.requires_grad for p in found.hf.parameters())


def test_the_bias_of_a_head_is_kept_beside_it(tmp_path: Path) -> None:
    model = build(tmp_path, "llama", bias=2.0)
    model.save_scorer(tmp_path / "out", dtype="float32")
    found = classifier.load(str(tmp_path / "out"))
    np.testing.assert_allclose(found.score([found.encode(*t) for t in TEXTS]), score(model), atol=1e-5)
    np.testing.assert_allclose(np.array(theirs(tmp_path / "out")) + 2.0, score(model), atol=1e-5)


def test_it_grades_samples_and_leaves_out_what_it_cannot_read(tmp_path: Path) -> None:
    model = build(tmp_path, "qwen2")
    model.save_scorer(tmp_path / "out")
    reward = make_component("reward", {"use": "reward_model", "path": str(tmp_path / "out")})
    assert isinstance(reward, RewardModel)
    steps = [Step.of(np.ones(1, np.int32), np.ones(1, np.int32), info={"text": said}) for _, said in TEXTS]
    group = [Trajectory(Request(Problem("t", "0", p)), (s,)) for (p, _), s in zip(TEXTS, steps, strict=True)]
    long = Trajectory(Request(Problem("t", "1", "12" * 40)), (steps[0],))
    broken = Trajectory(Request(Problem("t", "2", "a")), (Step.closing(np.ones(1, np.int32), None, 0.0),))
    ctx = testing.context()
    grades: Any = asyncio.run(reward.grade([*group, long, broken], ctx))
    np.testing.assert_allclose([g["reward_model"] for g in grades[:3]], score(model), atol=1e-5)
    assert grades[3:] == [None, None] and ctx.ledger["failed_graders"] == 1
    assert "the model reads 40" in ctx.problems[0]


def test_a_score_that_is_no_number_is_no_grade(tmp_path: Path) -> None:
    build(tmp_path, "llama").save_scorer(tmp_path / "out")
    reward = RewardModel(str(tmp_path / "out"))
    reward.model.offset = math.inf
    step = Step.of(np.ones(1, np.int32), np.ones(1, np.int32), info={"text": "12"})
    ctx = testing.context()
    [grade] = asyncio.run(reward.grade([Trajectory(Request(Problem("t", "0", "a")), (step,))], ctx))
    assert grade is None and ctx.ledger["failed_graders"] == 1
    assert "scores inf: expected a finite number" in ctx.problems[0]


def test_a_conversation_is_read_by_the_template(tmp_path: Path) -> None:
    build(tmp_path, "llama").save_scorer(tmp_path / "out")
    found = classifier.load(str(tmp_path / "out"))
    found.text.hf.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    prompt = (FrozenDict({"role": "user", "content": "hello"}),)
    assert found.text.decode(np.array(found.encode(prompt, "12"))) == "[user]hello[assistant]12"
    assert found.text.decode(found.text.encode(prompt)) == "[user]hello[assistant]"


def pad_as_end(place: Path) -> None:
    file = place / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pad_token": "<end>"}))


def test_what_is_no_reward_model_is_not_written(tmp_path: Path) -> None:
    build(tmp_path, "llama")
    for fields, told in [({}, "it has no value heads"), ({"value_head": True, "outputs": 2}, "it has 2 value heads")]:
        model = Causal(path=str(tmp_path / "lm"), **fields)
        model.build(SimpleNamespace())
        with pytest.raises(ValueError, match=told):
            model.save_scorer(tmp_path / "out")
    pad_as_end(tmp_path / "lm")
    model = Causal(path=str(tmp_path / "lm"), value_head=True)
    model.build(SimpleNamespace())
    model.save_scorer(tmp_path / "out")  # its padding is then another special token that no text has
    found = classifier.load(str(tmp_path / "out"))
    assert found.pad not in found.text.ends and found.text.hf.pad_token_id == found.pad


def labelled(place: Path) -> None:
    file = place / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "id2label": {"0": "bad", "1": "good"}}))


def pickled(place: Path) -> None:
    (place / "model.safetensors").rename(place / "pytorch_model.bin")


def grown(place: Path) -> None:
    file = place / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "hidden_size": 1 << 20}))


def configured(**fields: Any) -> Any:
    def change(place: Path) -> None:
        file = place / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))

    return change


def holding(name: str, text: str) -> Any:
    return lambda place: (place / name).write_text(text)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (labelled, "tells 2 labels apart: expected one output"),
        (pickled, r"its weights \(pytorch_model.bin\) are a pickle"),
        (grown, "parameters by its config.json|num_attention_heads|cannot"),
        (lambda place: (place / "tokenizer.json").unlink(), "has no tokenizer"),
        (holding("adapter_config.json", '{"target_modules": "(a+)+b"}'), "out holds a model and adapters"),
        (configured(score_offset=math.inf), "score_offset is inf: expected a finite number"),
        (configured(score_offset=1e300), "score_offset is 1e.300: expected a finite number"),
        (configured(score_offset=-(10**400)), "a number of 402 digits: expected fewer than 309"),
        (configured(score_offset="1"), "score_offset is 1: expected a finite number"),
        (configured(num_labels=1, id2label={"0": "a", "1": "b"}), "tells 2 labels apart: expected one output"),
        (configured(id2label=5), "id2label is '5': expected a table"),
        (configured(pad_token_id=-5), "out.*pad_token_id is -5: expected a token, 0 to 269"),
        (configured(pad_token_id=10**9), "out.*cannot be read: AssertionError: Padding_idx"),
        (configured(num_attention_heads=0), "out cannot be read: "),
        (configured(hidden_act="gulu"), "out cannot be read: .*gulu"),
        (configured(rope_scaling={"rope_type": "gulu"}), "out cannot be read: .*gulu"),
        (holding("tokenizer_config.json", "garbage"), "out.tokenizer_config.json: Expecting value"),
        (holding("tokenizer_config.json", "[1]"), "out.tokenizer_config.json: expected a table"),
        (holding("special_tokens_map.json", "garbage"), "out.special_tokens_map.json: Expecting value"),
        (holding("added_tokens.json", "garbage"), "out.added_tokens.json: Expecting value"),
    ],
)
def test_directories_that_are_refused(change: Any, told: str, tmp_path: Path) -> None:
    build(tmp_path, "llama").save_scorer(tmp_path / "out")
    change(tmp_path / "out")
    with pytest.raises(ValueError, match=told):
        classifier.load(str(tmp_path / "out"))


def test_a_language_model_is_no_reward_model(tmp_path: Path) -> None:
    build(tmp_path, "llama")
    with pytest.raises(ValueError, match=r"labels apart|weights are not there, such as score.weight"):
        classifier.load(str(tmp_path / "lm"))
    with pytest.raises(RecipeError, match="a path is missing"):
        make_component("reward", {"use": "reward_model"})


def test_an_encoder_reads_the_pair_of_prompt_and_completion(tmp_path: Path) -> None:
    """As transformers does, with the tokens and types that its tokenizer puts around them."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"helo 12+34=6abc"]
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, **names)
    config = AutoConfig.for_model(
        "bert", vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=32, num_labels=1, pad_token_id=0, initializer_range=0.5,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hf = AutoModelForSequenceClassification.from_config(config).eval()
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    prompts, said = zip(*TEXTS, strict=True)
    with torch.no_grad():
        wanted = hf(**tokenizer(list(prompts), list(said), padding=True, return_tensors="pt")).logits[:, 0].tolist()
    found = classifier.load(str(tmp_path))
    assert np.ptp(wanted) > 0.1 and found.typed
    np.testing.assert_allclose(found.score([found.encode(*pair) for pair in TEXTS]), wanted, atol=1e-5)

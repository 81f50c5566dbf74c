"""What transformers is given of a directory: everything that ordinary models have, and nothing that reads elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as ALL

from shuhari.models.text.causal import Causal
from shuhari.models.text.clean import NEVER, checked_copy, clean_config
from shuhari.models.text.expressions import explain_slow
from shuhari.models.text.made_tokenizers import bpe_tokenizer
from shuhari.models.text.steps import clean_tokenizer
from shuhari.models.text.tokenizers import Tokenizer as Own

TEXT = ["Hello world, it's 12345 o'clock.\n\n  def f(x):\n    return x**2 +  1", "naïve café ÀÉ 你好 🙂 \t tabs ﬁ"] * 20
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN.replace(r"\p{N}| ?", r"\p{N}{1,3}| ?")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥]+", r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?"
            r"[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]  # fmt: skip


def byte_level(pattern: str = "", digits: bool = False, more: list[str] | None = None, special: str = "") -> Tokenizer:
    """Of GPT-2, Llama-3, Qwen2.5, SmolLM2, DeepSeek: byte pairs of pieces that an expression cuts."""
    made = Tokenizer(models.BPE())
    cuts = [*([pattern] if pattern else []), *(more or [])]
    steps: list[Any] = [pre_tokenizers.Split(Regex(p), "isolated") for p in cuts]
    steps += [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    steps += [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern and not more)]
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    made.add_special_tokens([AddedToken(t, special=True) for t in ("<|end|>", "<|im_start|>")])
    made.add_tokens([AddedToken("<tool_call>", normalized=False)])
    start = special or "<|im_start|>"
    ids = made.token_to_id(start)
    made.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{start} $A", pair=f"{start} $A $B", special_tokens=[(start, ids)]),
    ])  # fmt: skip
    return made


def piece_level(prefix: bool) -> Tokenizer:
    """Of Gemma (no prefix) and of Llama-2, Mistral and Phi-3 (a prefix): pieces with spaces written as ▁, and bytes."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    replace = normalizers.Replace(" ", "▁")
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    tail = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*tail, decoders.Strip(" ", 1, 0)] if prefix else tail)
    if not prefix:
        made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    special = ["<unk>", "<s>", "<|end|>", *(f"<0x{i:02X}>" for i in range(256))]
    made.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False))
    return made


def unigram() -> Tokenizer:
    """Of ALBERT and T5 and their kin."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    made.decoder = decoders.Metaspace()
    special = ["<unk>", "<|end|>"]
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False)
    made.train_from_iterator(TEXT, trainer)
    return made


STYLES: dict[str, tuple[Callable[[], Tokenizer], str, str]] = {
    "gpt2": (byte_level, "gpt2", "GPT2Tokenizer"),
    "smollm2": (lambda: byte_level(digits=True), "llama", "GPT2Tokenizer"),
    "qwen2.5": (lambda: byte_level(QWEN), "qwen2", "Qwen2Tokenizer"),
    "llama3": (lambda: byte_level(LLAMA3), "llama", "PreTrainedTokenizerFast"),
    "gpt-oss, phi-4": (lambda: byte_level(O200K), "phi3", "PreTrainedTokenizerFast"),
    "deepseek": (lambda: byte_level(more=DEEPSEEK), "llama", "LlamaTokenizerFast"),
    "gemma": (lambda: piece_level(False), "gemma", "GemmaTokenizer"),
    "gemma3": (lambda: piece_level(False), "gemma3_text", "GemmaTokenizerFast"),
    "llama2, phi-3": (lambda: piece_level(True), "llama", "LlamaTokenizer"),
    "mistral": (lambda: piece_level(True), "mistral", "LlamaTokenizerFast"),
    "unigram": (unigram, "llama", "PreTrainedTokenizerFast"),
}


@pytest.mark.parametrize("style", STYLES)
def test_a_tokenizer_in_the_style_of_ordinary_models_gives_equal_ids(style: str, tmp_path: Path) -> None:
    make, kind, called = STYLES[style]
    made = make()
    hf = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", pad_token="<|end|>")
    hf.chat_template = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"
    hf.save_pretrained(tmp_path)
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    settings(tmp_path / "tokenizer_config.json", tokenizer_class=called, add_bos_token=True, unheard_of=[1])
    before = AutoTokenizer.from_pretrained(tmp_path)
    with checked_copy(tmp_path) as copied:
        after = AutoTokenizer.from_pretrained(copied)
    assert type(after) is type(before) and after.get_vocab() == before.get_vocab()
    assert after.special_tokens_map == before.special_tokens_map and after.chat_template == before.chat_template
    for text in (*TEXT[:2], "a<|end|>b <|im_start|> <tool_call>x", "", " ", "▁", "\x00\u200b é"):
        for special in (True, False):
            ids = before.encode(text, add_special_tokens=special)
            assert after.encode(text, add_special_tokens=special) == ids
            assert after.decode(ids) == before.decode(ids)


LEGACY = {"rope_theta": 12345.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "torch_dtype": "bfloat16",
          "sliding_window": 64, "layer_types": None, "score_offset": 0.5}  # fmt: skip


@pytest.mark.parametrize("some", range(8))
def test_no_key_of_an_ordinary_configuration_is_lost(some: int, tmp_path: Path) -> None:
    """Of every causal architecture that transformers can make a usual configuration of; as it writes it now, and with
    the keys of older files."""
    seen = 0
    for name in sorted(ALL)[some::8]:
        for more in ({}, LEGACY):
            file = tmp_path / f"{name}{len(more)}" / "config.json"
            try:
                AutoConfig.for_model(name).save_pretrained(file.parent)
                settings(file, **more)
                usual = AutoConfig.from_pretrained(file.parent).to_dict()
            except Exception:  # of transformers: these settings are none of that architecture
                continue
            cleaned = clean_config(file)
            file.write_text(json.dumps(cleaned))
            assert AutoConfig.from_pretrained(file.parent).to_dict() == usual, name
            assert NEVER.isdisjoint(cleaned)
            seen += 1
    assert seen > 15
    settings(file, model_type="qwen2", use_sliding_window=True, max_window_layers=3, unheard_of="x")
    assert clean_config(file).items() >= {"use_sliding_window": True, "max_window_layers": 3}.items()
    assert "unheard_of" not in clean_config(file)


# ---------------------------------------------------------------- what is not loaded


def settings(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.fixture(scope="module")
def text() -> Own:
    return bpe_tokenizer(TEXT, 300)


@pytest.fixture
def place(text: Own, tmp_path: Path) -> Path:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = AutoConfig.for_model("llama", vocab_size=text.size, num_key_value_heads=2, pad_token_id=0, eos_token_id=1,
                                  bos_token_id=1, max_position_embeddings=64, **sizes)  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "m")
    text.save(str(tmp_path / "m"))
    return tmp_path / "m"


def load(place: Path) -> Causal:
    model = Causal(path=str(place))
    model.build(SimpleNamespace())
    return model


def test_other_files_that_a_configuration_names_are_not_read(place: Path) -> None:
    other = json.loads((place / "config.json").read_text())
    (place / "config.4.0.0.json").write_text(json.dumps({**other, "num_hidden_layers": 7, "quantization_config": {}}))
    settings(place / "config.json", configuration_files=["config.4.0.0.json"])
    (place / "tokenizer.4.0.0.json").write_text((place / "tokenizer.json").read_text().replace('"a"', '"(a+)+b"'))
    settings(place / "tokenizer_config.json", fast_tokenizer_files=["tokenizer.4.0.0.json"])
    model = load(place)
    assert model.module.lm.config.num_hidden_layers == 1 and "(a+)+b" not in model.text.hf.get_vocab()
    assert not hasattr(model.module.lm.config, "configuration_files")
    assert str(model.module.lm.config._name_or_path) == str(model.text.hf.name_or_path) == str(place)


def test_attention_is_not_for_a_directory_to_choose(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*args: Any, **_: Any) -> None:
        raise AssertionError(f"a kernel was asked for: {args}")

    for name in ("load_and_register_attn_kernel", "lazy_import_flash_attention"):
        monkeypatch.setattr(f"transformers.modeling_utils.{name}", asked, raising=False)
    own = "_attn_implementation", "_attn_implementation_internal"
    for key in ("attn_implementation", *own, "experts_implementation"):
        settings(place / "config.json", **{key: "evil/kernel"})
    settings(place / "config.json", auto_map={"AutoConfig": "evil.Config"}, kernel_config={"a": "evil/kernel"})
    assert load(place).module.lm.config._attn_implementation in ("sdpa", "eager")


TEN = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}] * 12
BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "labels": ("config.json", {"num_labels": 10**9}, "num_labels is 1000000000: expected at most 4096"),
    "layers": ("config.json", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000: expected at most"),
    "deep": ("config.json", {"rope_parameters": json.loads('{"a":' * 30 + "1" + "}" * 30)}, "tables more than 16 deep"),
    "normalizer": (
        "tokenizer.json", {"normalizer": {"type": "Sequence", "normalizers": TEN}},
        r"tokenizer.json: its normalizer may make 1e\+12 characters of one: expected at most 128",
    ),
    "decoder": ("tokenizer.json", {"decoder": {"type": "Sequence", "decoders": TEN}}, "its decoder may make 1e"),
    "prefix": (
        "tokenizer.json", {"normalizer": {"type": "Prepend", "prepend": "a" * 1000}}, "may make 1e.03 characters of one"
    ),
    "unheard of": ("tokenizer.json", {"normalizer": {"type": "Exec"}}, "normalizer has a step 'Exec': expected"),
    "alternatives": (
        "tokenizer.json",
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated"}},
        "several ways may begin alike",
    ),
    "bounded": (
        "tokenizer.json",
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a{1,30}){1,30}b"}, "behavior": "Isolated"}},
        "it repeats a group that repeats",
    ),
    "chance": ("tokenizer.json", {"model": {"type": "BPE", "dropout": 0.5, "vocab": {}, "merges": []}}, "drops merges"),
}  # fmt: skip


@pytest.mark.parametrize("why", BAD)
def test_what_would_take_the_machine_is_told_at_once(place: Path, why: str) -> None:
    file, values, told = BAD[why]
    settings(place / file, **values)
    began = time.process_time()
    with pytest.raises(ValueError, match=told):
        load(place)
    assert time.process_time() - began < 5


def test_a_panic_of_the_library_is_an_error(place: Path) -> None:
    """Of an expression whose form says nothing, too."""
    from shuhari.models.text.tokenizers import told_panics

    class PanicException(BaseException):  # as pyo3 calls it
        pass

    with pytest.raises(ValueError, match="the tokenizer fails on 'aaa'"), told_panics("aaa"):
        raise PanicException("called `Result::unwrap()`")
    with pytest.raises(KeyboardInterrupt), told_panics("aaa"):
        raise KeyboardInterrupt


def test_a_tokenizer_is_checked_in_a_time_linear_in_its_expressions() -> None:
    for pattern in ("(" * 8000, "[" * 16000, "a|" * 8000, "(a|" * 4000, "a{1,3}" * 2000, "\\" * 16000):
        began = time.process_time()
        explain_slow(pattern)
        assert time.process_time() - began < 0.5
    assert clean_tokenizer({"model": {"type": "BPE"}, "padding": {"length": 10**9}})["padding"] is None

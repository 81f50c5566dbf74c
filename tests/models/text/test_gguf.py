"""A model that is one GGUF file is read to the logits of the model that it was made of, and trains; a file that is no
model, is cut, or has no tokenizer is refused by its name and by what is wrong with it."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from chat_models import save_chat
from shuhari.desk.api import train
from shuhari.models.text import pretrained
from shuhari.models.text.gguf import Head, unpack
from shuhari.store import Run

LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
EDGES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}


def turn(x: Any, heads: int) -> Any:
    """Queries and keys as ggml has them: the two halves of a head that are rotated together side by side."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def write_gguf(model: Path, file: Path, architecture: str = "llama", tokenizer: bool = True) -> Path:
    """The model in a directory as one file, as llama.cpp's converter writes it."""
    gguf = pytest.importorskip("gguf", reason="the package gguf writes the files")
    lm, text = pretrained.load(str(model))
    c, hf = lm.config, text.hf
    out = gguf.GGUFWriter(str(file), architecture)
    out.add_context_length(c.max_position_embeddings)
    out.add_embedding_length(c.hidden_size)
    out.add_block_count(c.num_hidden_layers)
    out.add_feed_forward_length(c.intermediate_size)
    out.add_head_count(c.num_attention_heads)
    out.add_head_count_kv(c.num_key_value_heads)
    out.add_key_length(c.head_dim)
    out.add_rope_dimension_count(c.head_dim)
    out.add_rope_freq_base(10_000.0)
    out.add_layer_norm_rms_eps(c.rms_norm_eps)
    out.add_vocab_size(c.vocab_size)
    if tokenizer:
        made = json.loads(hf.backend_tokenizer.to_str())
        words = sorted(hf.get_vocab(), key=hf.get_vocab().__getitem__)
        special = set(hf.all_special_tokens)
        out.add_tokenizer_model("gpt2")
        out.add_tokenizer_pre("gpt-2")
        out.add_token_list(words)
        out.add_token_types([3 if w in special else 1 for w in words])
        out.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in made["model"]["merges"]])
        out.add_eos_token_id(hf.eos_token_id)
        out.add_pad_token_id(hf.pad_token_id)
        out.add_chat_template(hf.chat_template)
    for name, x in lm.state_dict().items():
        if name == "lm_head.weight":  # tied
            continue
        parts, array = name.removesuffix(".weight"), x.numpy()
        if parts in EDGES:
            out.add_tensor(f"{EDGES[parts]}.weight", array)
            continue
        _, _, layer, what = parts.split(".", 3)
        heads = {"attn_q": c.num_attention_heads, "attn_k": c.num_key_value_heads}.get(LAYER[what])
        out.add_tensor(f"blk.{layer}.{LAYER[what]}.weight", array if heads is None else turn(array, heads))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return file


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(a directory, the same as one file)."""
    at = tmp_path_factory.mktemp("gguf")
    return save_chat(at / "model"), write_gguf(at / "model", at / "tiny.gguf")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shuhari" / "gguf"


def test_it_is_the_model_that_it_was_made_of(made: tuple[Path, Path], cache: Path) -> None:
    folder, file = made
    lm, text = pretrained.load(str(folder))
    again, words = pretrained.load(str(file))
    ids = text.encode("What is 1 + 2?")
    assert words.encode("What is 1 + 2?").tolist() == ids.tolist() and words.end == text.end and words.chat
    assert words.encode_answer("What is 1 + 2?", "It is 3.").tolist()[-1] == text.end
    row = torch.tensor(ids[None].astype("int64"))
    with torch.no_grad():
        assert torch.allclose(lm(row).logits, again(row).logits, atol=1e-5)
    (kept,) = cache.iterdir()
    assert kept.name.startswith("tiny-") and sorted(p.suffix for p in kept.glob("model*")) == [".safetensors"]


def test_it_is_converted_once(made: tuple[Path, Path], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = unpack(made[1])
    monkeypatch.setattr("shuhari.models.text.gguf._convert", None)
    assert unpack(made[1]) == first and not list(cache.glob(".tmp-*"))


def test_it_trains(made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"What is {i} + 1?", "completion": f"It is {i + 1}."} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets: dict[str, Any] = {"models.policy.path": str(made[1]), "task.name": "file/rows.jsonl"}
    train("pretrained/sft", "run", steps=2, **sets, **{"buffer.size": 2, "evaluate.n": 0})
    assert Run("run").status == "complete"


def edit(at: int, kind: str, value: Any) -> Callable[[bytes], bytes]:
    return lambda raw: raw[:at] + struct.pack(f"<{kind}", value) + raw[at + struct.calcsize(f"<{kind}") :]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda raw: b"", "begins with b''"),
        (lambda raw: b"PK\3\4" + raw[4:], "is not a GGUF file: it begins with b'PK"),
        (edit(4, "I", 9), "GGUF of version 9: expected 2 or 3"),
        (lambda raw: raw[:10], "10 bytes and ends within its head: it is cut"),
        (lambda raw: raw[:700], "700 bytes and ends within its head: it is cut"),
        (lambda raw: raw[: len(raw) // 2], "it is cut, or was not fetched whole"),
        (edit(8, "Q", 1 << 60), f"says that it has {1 << 60} tensors"),
        (edit(16, "Q", 1 << 60), f"tensors and {1 << 60} keys: expected at most"),
        (edit(24, "Q", 1 << 40), f"a text of {1 << 40} bytes"),
    ],
)
def test_what_is_no_whole_file_is_refused_at_once(
    change: Callable[[bytes], bytes], told: str, made: tuple[Path, Path], tmp_path: Path, cache: Path
) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(change(made[1].read_bytes()))
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"bad\.gguf") as refused:
        pretrained.load(str(bad))
    assert told in str(refused.value) and time.monotonic() - began < 5 and not cache.exists()


@pytest.mark.parametrize("left", [0.3, 0.6, 0.9, 0.999])
def test_a_file_that_is_cut_anywhere_is_told(left: float, made: tuple[Path, Path], tmp_path: Path) -> None:
    raw = made[1].read_bytes()
    (tmp_path / "cut.gguf").write_bytes(raw[: int(left * len(raw))])
    with pytest.raises(ValueError, match=r"cut\.gguf"):
        pretrained.load(str(tmp_path / "cut.gguf"))


def test_another_architecture_and_no_tokenizer(made: tuple[Path, Path], tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"other\.gguf is a model of the architecture 'rwkv99'.*safetensors instead"):
        unpack(write_gguf(made[0], tmp_path / "other.gguf", architecture="rwkv99"))
    with pytest.raises(ValueError, match=r"mute\.gguf has no tokenizer \(tokenizer\.ggml\.tokens\)"):
        unpack(write_gguf(made[0], tmp_path / "mute.gguf", tokenizer=False))
    assert time.monotonic() - began < 10


def test_a_folder_of_such_files_is_told_which_to_give(made: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "tiny.gguf").write_bytes(made[1].read_bytes())
    with pytest.raises(ValueError, match=r"has no config\.json \(give the file itself: .*tiny\.gguf\)"):
        pretrained.load(str(tmp_path / "only"))
    with pytest.raises(FileNotFoundError, match=r"nowhere\.gguf"):
        pretrained.load(str(tmp_path / "nowhere.gguf"))


def test_the_head_alone_tells_what_is_in_it(made: tuple[Path, Path]) -> None:
    head = Head(made[1])
    assert head.keys["general.architecture"] == "llama" and len(head.tensors) == 2 + 2 * len(LAYER)

"""Models with random weights, of given sizes, and ours upon them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from shuhari.batch import Batch
from shuhari.data import Array, Problem, Request, Step, Trajectory
from shuhari.kernel.pack import pack
from shuhari.models.text.causal import Causal
from shuhari.models.text.trunk import Trunk

# SmolLM2-135M's and Qwen2.5-0.5B's
SMOL = {"kind": "llama", "vocab_size": 49_152, "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "intermediate_size": 1536, "max_position_embeddings": 8192,
        "tie_word_embeddings": True}  # fmt: skip
QWEN = {"kind": "qwen2", "vocab_size": 151_936, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "max_position_embeddings": 4096,
        "tie_word_embeddings": True}  # fmt: skip
LAYOUTS: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
              "intermediate_size": 512},
    "qwen2": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
              "intermediate_size": 512, "tie_word_embeddings": True},
    "gpt2": {"n_embd": 256, "n_layer": 4, "n_head": 8, "n_positions": 512, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
             "resid_pdrop": 0.0},
}  # fmt: skip


def shrunk(sizes: dict[str, Any]) -> dict[str, Any]:
    """The same, small enough for any machine."""
    heads = max(2, sizes["num_key_value_heads"])
    return {**sizes, "vocab_size": 512, "hidden_size": 32 * heads, "num_hidden_layers": 2,
            "num_attention_heads": 2 * heads, "num_key_value_heads": heads, "intermediate_size": 128}  # fmt: skip


def network(sizes: dict[str, Any], device: str, dtype: torch.dtype = torch.float32) -> Any:
    """A model of transformers; the end token is 1."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    rest = {k: v for k, v in sizes.items() if k != "kind"}
    config = AutoConfig.for_model(sizes["kind"], **rest, pad_token_id=0, eos_token_id=1, bos_token_id=None)
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").to(device)


def causal(lm: Any, dtype: str = "float32") -> Causal:
    """Our model upon these weights; it has no tokenizer."""
    model = Causal(dtype=dtype)  # type: ignore[arg-type]
    model.module = Trunk(lm, dtype=getattr(torch, dtype))
    model.text = SimpleNamespace(end=1, ends=(1,), pad=0, stops=lambda strings: None, decode=str)  # type: ignore[assignment]
    return model


def loaded(path: Path, device: str, dtype: str = "float32") -> Causal:
    """Our model of a directory or a .gguf file."""
    model = Causal(path=str(path), device=device, dtype=dtype)  # type: ignore[arg-type]
    model.build(SimpleNamespace())
    return model


def batch_of(rows: list[tuple[Array, Array]], advantage: bool = False) -> Batch:
    """A batch of (context, action); those with one context, which are side by side, are a group."""
    found, request = [], None
    for i, (context, action) in enumerate(rows):
        if not i or context.tobytes() != rows[i - 1][0].tobytes() or request is None:
            request = Request(Problem(str(i), "", None), n=sum(c.tobytes() == context.tobytes() for c, _ in rows))
        logp = np.full(len(action), -3.0, np.float32)
        found.append(Trajectory(request, (Step.of(context, action, logp),)))
    batch = pack(found)
    if advantage:
        x = torch.randn(batch["mask"].shape, generator=torch.Generator().manual_seed(1)) * batch["mask"]
        batch = batch.put({"advantage": x, "weight/rl": torch.ones(len(rows))})
    return batch


def random_rows(vocabulary: int, groups: int, n: int, prompt: int, new: int) -> list[tuple[Array, Array]]:
    """Groups of n rows with one prompt; lengths differ."""
    rng, found = np.random.default_rng(0), []
    for g in range(groups):
        context = rng.integers(2, vocabulary, prompt + 3 * g).astype(np.int32)
        for _ in range(n):
            found.append((context, rng.integers(2, vocabulary, int(rng.integers(new // 2, new + 1))).astype(np.int32)))
    return found

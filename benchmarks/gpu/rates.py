"""Part 3: tokens a second and memory of decoding and of training, ours beside transformers', of models of two sizes
with random weights (SmolLM2-135M's and Qwen2.5-0.5B's), in bfloat16 (training: over float32 parameters).

Each side has the GPU to itself. Decoding: answers of `NEW` tokens each in groups of 8, at temperature 1, through
our decoder and through `generate`, with few and with many rows. Training: forward, backward and AdamW of one batch,
our model and loss beside a plain step of the transformers model. A decoding step cannot be faster than reading the
weights and the keys and values once (`of_bandwidth`); training is 6 x parameters (without embeddings, with the
head) x tokens + attention (`of_peak`). `profile`: where the time of our decoding step goes. `attention`: one
layer's attention of a decoding step in three forms. `grpo`: whole steps beside TRL's, where that is installed
(`steps.py`)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from facts import limits
from made import QWEN, SMOL, batch_of, causal, network, shrunk
from notes import Notes, empty, forget_peak, peak_gib, seconds

from shuhari.data import Sampling
from shuhari.models.text.rows import Row

PROMPT, NEW = 128, 128
ROWS = (16, 128, 512)
BATCH, LENGTH = 16, 1024


def side(work: Callable[[], Any], tokens: int, rounds: int) -> dict[str, Any]:
    """Of work that was begun already: the first time it is for warmth."""
    forget_peak()
    first = seconds(work)
    took = [seconds(work) for _ in range(rounds)]
    return {"tokens_per_s": tokens / min(took), "first_s": first, "seconds": took, "peak_gib": peak_gib()}


def weights_of(sizes: dict[str, Any]) -> tuple[int, int]:
    """(numbers that a decoding step multiplies with, numbers that a layer keeps of a token)."""
    h, m, v = sizes["hidden_size"], sizes["intermediate_size"], sizes["vocab_size"]
    kv = 2 * sizes["num_key_value_heads"] * h // sizes["num_attention_heads"]
    return sizes["num_hidden_layers"] * (h * (2 * h + kv) + 3 * h * m) + v * h, kv


def make_decoder(sizes: dict[str, Any], device: str, rows: int) -> Any:
    decoder = causal(network(sizes, device)).decoder(slots=rows, dtype="bfloat16")
    assert decoder is not None
    return decoder


def ask(decoder: Any, sizes: dict[str, Any], rows: int, prompt: int, new: int) -> None:
    rng = np.random.default_rng(0)
    prompts = rng.integers(2, sizes["vocab_size"], (max(1, rows // 8), prompt)).astype(np.int32)
    made = [Row(prompts[i * len(prompts) // rows], Sampling(max_new=new), i + 1, (i,), least=new) for i in range(rows)]
    decoder.add(made)


def decode_ours(
    sizes: dict[str, Any], notes: Notes, rows: int, lengths: tuple[int, int], rounds: int
) -> dict[str, Any]:
    decoder = make_decoder(sizes, notes.device, rows)

    def ours() -> None:
        ask(decoder, sizes, rows, *lengths)
        while len(decoder):
            decoder.step()

    return side(ours, rows * lengths[1], rounds)


def decode(sizes: dict[str, Any], notes: Notes, rows: int, rounds: int = 2) -> dict[str, Any]:
    """Both sides, with `rows` answers."""
    from transformers import GenerationConfig

    prompt, new = (8, 8) if notes.tiny else (PROMPT, NEW)
    found = {"rows": rows, "ours": decode_ours(sizes, notes, rows, (prompt, new), rounds)}
    empty()
    lm = network(sizes, notes.device, torch.bfloat16).eval()
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(2, sizes["vocab_size"], (rows, prompt))).to(notes.device)
    config = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=new, min_new_tokens=new, pad_token_id=0,
                              eos_token_id=1)  # fmt: skip

    def theirs() -> None:
        lm.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)

    found["generate"] = side(theirs, rows * new, rounds)
    found["ratio"] = found["ours"]["tokens_per_s"] / found["generate"]["tokens_per_s"]
    weights, kv = weights_of(sizes)
    read = 2 * (weights + rows * (prompt + new / 2) * sizes["num_hidden_layers"] * kv)
    found["ours"]["gb_per_s"] = read * new / min(found["ours"]["seconds"]) / 1e9
    return found


def stepping(lm: Any, loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """A step of AdamW on a loss."""
    optimiser = torch.optim.AdamW(lm.parameters(), lr=1e-6, fused=True)

    def go() -> None:
        loss().backward()
        optimiser.step()
        optimiser.zero_grad()

    return go


def train(sizes: dict[str, Any], notes: Notes, rounds: int = 3) -> dict[str, Any]:
    """Both sides: one optimiser step of the mean negative log-likelihood."""
    batch, length = (4, 32) if notes.tiny else (BATCH, LENGTH)
    ids = np.random.default_rng(1).integers(2, sizes["vocab_size"], (batch, length)).astype(np.int32)
    packed, tokens = batch_of([(row[:1], row[1:]) for row in ids]), torch.from_numpy(ids).long().to(notes.device)

    def ours() -> dict[str, Any]:
        lm = network(sizes, notes.device)
        model = causal(lm, "bfloat16")
        return side(stepping(lm, lambda: -model(packed).log_prob().mean()), ids.size, rounds)

    def theirs() -> dict[str, Any]:
        lm = network(sizes, notes.device)

        def loss() -> torch.Tensor:
            with torch.autocast(notes.device, torch.bfloat16):
                value: torch.Tensor = lm(input_ids=tokens, labels=tokens).loss
                return value

        return side(stepping(lm, loss), ids.size, rounds)

    found = {"ours": ours()}
    empty()
    found["transformers"] = theirs()
    found["ratio"] = found["ours"]["tokens_per_s"] / found["transformers"]["tokens_per_s"]
    weights, _ = weights_of(sizes)
    flops = 6 * weights + 6 * sizes["num_hidden_layers"] * sizes["hidden_size"] * length
    found["ours"]["tflop_per_s"] = found["ours"]["tokens_per_s"] * flops / 1e12
    return found


def profile(sizes: dict[str, Any], notes: Notes, rows: int, steps: int = 16) -> dict[str, Any]:
    """A decoding step of ours: its time, the share that the GPU works, launches, copies to the host and kernels."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    prompt = 8 if notes.tiny else PROMPT
    decoder = make_decoder(sizes, notes.device, rows)
    ask(decoder, sizes, rows, prompt, 4 * steps)
    for _ in range(steps):
        decoder.step()
    plain = seconds(lambda: [decoder.step() for _ in range(steps)])
    cuda = notes.device == "cuda"
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profiled(activities=kinds) as told:
        for _ in range(steps):
            decoder.step()
    events = told.key_averages()
    of = "self_device_time_total" if cuda else "self_cpu_time_total"
    whole = sum(getattr(e, of) for e in events)
    top = sorted(events, key=lambda e: -getattr(e, of))[:14]
    words = ("Memcpy", "Launch", "Synchronize")
    copies = {e.key: e.count / steps for e in events if any(w in e.key for w in words)}
    longest = [{"name": e.key[:90], "us": getattr(e, of) / steps, "calls": e.count / steps} for e in top]
    return {"rows": rows, "step_ms": 1e3 * plain / steps, "device_ms": whole / 1e3 / steps, "calls_a_step": copies,
            "top": longest}  # fmt: skip


def attention(sizes: dict[str, Any], notes: Notes, rows: int = 128, columns: int = 256) -> dict[str, Any]:
    """Microseconds of one token of each row over what it has read: as `slots` asks the fused kernel; with the heads of
    a group as further queries of their key-value head, which needs no `enable_gqa`; and as two products and a softmax.
    With a mask (rows of different lengths) and without."""
    H, G = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    d = sizes["hidden_size"] // H
    q = torch.randn(rows, H, d, device=notes.device, dtype=torch.bfloat16)
    k, v = (torch.randn(rows, G, columns, d, device=notes.device, dtype=torch.bfloat16) for _ in range(2))
    mask = torch.zeros(rows, 1, columns, device=notes.device, dtype=torch.bfloat16)
    mask[: rows // 2, :, columns // 2 :] = -torch.inf
    found: dict[str, Any] = {"rows": rows, "columns": columns}
    times = 3 if notes.tiny else 200
    for name, m in (("masked", mask), ("even", None)):

        def fused(m: Any = m) -> torch.Tensor:
            out = F.scaled_dot_product_attention(
                q[:, :, None], k, v, attn_mask=None if m is None else m[:, None], scale=d**-0.5, enable_gqa=H != G
            )
            return out[:, :, 0]

        def grouped(m: Any = m) -> torch.Tensor:
            wide = None if m is None else m[:, None].expand(rows, G, H // G, columns)
            out = F.scaled_dot_product_attention(q.unflatten(1, (G, -1)), k, v, attn_mask=wide, scale=d**-0.5)
            return out.flatten(1, 2)

        def products(m: Any = m) -> torch.Tensor:
            scores = torch.bmm((q * d**-0.5).view(rows * G, H // G, d), k.flatten(0, 1).mT)
            if m is not None:
                scores.view(rows, H, -1).add_(m)
            return torch.bmm(scores.softmax(-1, dtype=torch.float32).to(v.dtype), v.flatten(0, 1)).view(rows, H, d)

        want = products().float()
        for form, work in (("fused", fused), ("grouped", grouped), ("products", products)):
            off = float((work().float() - want).abs().max())
            took = 1e6 * seconds(lambda work=work: [work() for _ in range(times)]) / times
            found[f"{form}, {name}"] = {"us": took, "apart": off}
    return found


def grpo(sizes: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """What `steps.py` reports of each side, by name; in words, where one has failed."""
    from steps import prepare

    found: dict[str, Any] = {}
    sides = ["ours", *(["trl"] if importlib.util.find_spec("trl") else [])]
    small = "--prompts 4 --n 4 --new 8 --steps 2 --micro 256" if notes.tiny else "--new 128 --steps 4"
    here = Path(__file__).resolve().parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *filter(None, sys.path)])}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), sizes)
        for name in sides:
            command = [sys.executable, str(here / "steps.py"), name, folder, "--device", notes.device, *small.split()]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=env,
                                  timeout=max(5.0, notes.left))  # fmt: skip
            told = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            why = "\n".join(done.stderr.strip().splitlines()[-12:]) or f"exit code {done.returncode}"
            found[name] = json.loads(told[0].removeprefix("RESULT ")) if told else {"failed": why}
    return found


def main(notes: Notes) -> None:
    smol, qwen = (shrunk(SMOL), shrunk(QWEN)) if notes.tiny else (SMOL, QWEN)
    numbers = (8,) if notes.tiny else ROWS
    notes.attempt("limits", 5, lambda: limits(notes.device, notes.tiny))
    for name, sizes in (("135M", smol), ("0.5B", qwen)):
        notes.attempt(f"train {name}", 10, lambda sizes=sizes: train(sizes, notes))
        for rows in numbers:
            notes.attempt(f"decode {name}, {rows} rows", 12, lambda s=sizes, r=rows: decode(s, notes, r))
        rows = numbers[len(numbers) // 2]
        notes.attempt(f"profile {name}", 10, lambda s=sizes, r=rows: profile(s, notes, r))
        notes.attempt(f"attention {name}", 5, lambda s=sizes: attention(s, notes, numbers[-1]))
    notes.attempt("grpo 135M", 30, lambda: grpo(smol, notes))
    judge(notes, (("135M", smol), ("0.5B", qwen)))


def judge(notes: Notes, models: tuple[tuple[str, dict[str, Any]], ...]) -> None:
    """Beside the machine's limits."""
    known = notes.found.get("limits", {})
    for name, _ in models:
        trained = notes.found.get(f"train {name}", {}).get("ours", {})
        if trained and "product_tflop_per_s_bfloat16" in known:
            trained["of_peak"] = trained["tflop_per_s"] / known["product_tflop_per_s_bfloat16"]
        for entry, found in list(notes.found.items()):
            if entry.startswith(f"decode {name}") and "ours" in found and "copy_gb_per_s" in known:
                found["ours"]["of_bandwidth"] = found["ours"]["gb_per_s"] / known["copy_gb_per_s"]
    notes.put("judged", True)

"""Part 5: a model in shards (torch's FSDP2 around our lean forward) with one rank: it gathers and adds up over NCCL,
alone. Weights after some steps beside those of a whole copy, what is saved and read again, and rates.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from made import SMOL, batch_of, causal, random_rows, shrunk
from notes import Notes, empty, forget_peak, peak_gib, seconds
from steps import prepare

from shuhari import testing
from shuhari.distributed.group import join_default
from shuhari.distributed.sharded import Sharded
from shuhari.learners.loss import Loss
from shuhari.learners.parts import Part, Term
from shuhari.objectives.clip import Clip
from shuhari.optimisers.adamw import AdamW

SMALL = {"kind": "llama", "vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 256, "max_position_embeddings": 512,
         "tie_word_embeddings": True}  # fmt: skip


def part() -> Part:
    return Part(("policy",), {"clip": Term(Clip(low=0.9, high=9.0))}, AdamW(lr=1e-3, clip=0.5))


def same(folder: Path, mesh: Any, device: str) -> dict[str, Any]:
    """Three steps in float32, whole and in shards; saved after the second."""
    from transformers import AutoModelForCausalLM

    prepare(folder / "small", SMALL)
    batch = batch_of(random_rows(90, 4, 4, 12, 24), advantage=True)
    lm = AutoModelForCausalLM.from_pretrained(folder / "small", dtype=torch.float32).to(device)
    model, mine = causal(lm), part()
    params = list(model.module.parameters())
    mine.optimiser.bind(params)
    ctx = testing.context(models={"policy": model})
    whole = [mine.optimiser.step(Loss(batch, mine, "policy", ctx, params, 200), 0.0)["grad_norm"] for _ in range(3)]
    sharded = Sharded.load(folder / "small", mesh, part())
    ctx = testing.context(models={"policy": sharded.model})
    norms = [sharded.step(batch, ctx, 200)["grad_norm"] for _ in range(2)]
    sharded.save(folder / "saved")
    norms.append(sharded.step(batch, ctx, 200)["grad_norm"])
    again = Sharded.load(folder / "small", mesh, part(), weights=folder / "saved")
    ctx = testing.context(models={"policy": again.model})
    norms.append(again.step(batch, ctx, 200)["grad_norm"])
    named = dict(lm.named_parameters())
    off = max(float((x.detach() - named[n].detach()).abs().max()) for n, x in sharded.shards.items())
    back = all(torch.equal(x, again.shards[n]) for n, x in sharded.shards.items())
    return {"grad_norm, whole": whole, "grad_norm, shards": norms, "weights_apart": off, "saved_same_bits": back}


def rate(folder: Path, mesh: Any, sizes: dict[str, Any], tiny: bool, rounds: int = 3) -> dict[str, Any]:
    """Training tokens a second, bfloat16 over float32."""
    prepare(folder / "large", sizes)
    length = 32 if tiny else 1024
    rows = random_rows(90, 4 if tiny else 16, 1, 1, length)
    batch = batch_of(rows, advantage=True)
    forget_peak()
    sharded = Sharded.load(folder / "large", mesh, part(), compute=torch.bfloat16)
    ctx = testing.context(models={"policy": sharded.model})
    first = seconds(lambda: sharded.step(batch, ctx))
    took = [seconds(lambda: sharded.step(batch, ctx)) for _ in range(rounds)]
    tokens = sum(len(c) + len(a) for c, a in rows)
    return {"tokens": tokens, "first_s": first, "seconds": took, "tokens_per_s": tokens / min(took),
            "peak_gib": peak_gib()}  # fmt: skip


def main(notes: Notes) -> None:
    cuda = notes.device == "cuda"
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in ("small", "large"):
            (folder / name).mkdir()
        join_default(folder, 0, 1, 0 if cuda else None)
        try:
            mesh = torch.distributed.device_mesh.init_device_mesh("cuda" if cuda else "cpu", (1,))
            notes.attempt("same", 10, lambda: same(folder, mesh, notes.device))
            empty()
            sizes = shrunk(SMOL) if notes.tiny else SMOL
            notes.attempt("rate 135M", 10, lambda: rate(folder, mesh, sizes, notes.tiny))
        finally:
            torch.distributed.destroy_process_group()

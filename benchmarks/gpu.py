"""Decode and training rates of a 0.5 B-parameter model on one GPU, ours beside transformers and TRL, and the machine's
limits.

    python benchmarks/gpu.py            under an hour; torch 2.11 or newer with CUDA, transformers, no network; writes
                                        results/gpu.json and gpu.md
    python benchmarks/gpu.py --tiny     a few layers on whatever there is, to see that it works; writes nothing

The model has Qwen2.5-0.5B's sizes and random weights, in bfloat16 (training: float32 parameters). Ours and theirs take
turns. Decoding: `rows` answers of `new` tokens each in groups of 8, at temperature 1, through our decoder and through
`generate` with a dynamic and a static cache. Training: forward, backward and AdamW of one batch of `batch` rows of
`length` tokens, our model and loss beside a plain loop over the transformers model. Limits: bandwidth of a copy (read
and written) and the best square matrix product in bfloat16. A decoding step cannot be faster than reading the weights
and the keys and values once; training is 6 x parameters (without embeddings, with the head) x tokens + attention.
GRPO: whole steps, ours beside TRL's (left out where `trl` is not installed), each in a process of its own
(`gpu_grpo.py`), with its peak of memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from common import machine, shown, spread, table
from torch import Tensor

QWEN = {"vocab_size": 151_936, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "max_position_embeddings": 4096,
        "tie_word_embeddings": True}  # fmt: skip
TINY = {**QWEN, "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128}  # fmt: skip


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(work: Callable[[], Any]) -> float:
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def best(work: Callable[[], Any], times: int) -> float:
    work()
    return min(seconds(work) for _ in range(times))


def limits(device: str, tiny: bool) -> dict[str, float]:
    """Bytes a second of a copy, and operations a second of the best square product."""
    x = torch.empty(2**22 if tiny else 2**30, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    bandwidth = 2 * x.numel() / best(lambda: y.copy_(x), 5)
    peak = 0.0
    for n in (256,) if tiny else (4096, 8192):
        a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
        peak = max(peak, 2 * n**3 / best(lambda a=a, b=b: a @ b, 10))
    return {"bytes": bandwidth, "flops": peak}


def network(sizes: dict[str, Any], device: str, dtype: torch.dtype) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen2", **sizes, pad_token_id=0, eos_token_id=1, bos_token_id=None)
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").to(device)


def causal(lm: Any, dtype: str = "float32") -> Any:
    """Our model upon these weights; it has no tokenizer."""
    from shuhari.models.text.causal import Causal
    from shuhari.models.text.trunk import Trunk

    model = Causal(dtype=dtype)
    model.module = Trunk(lm, dtype=getattr(torch, dtype))
    model.text = SimpleNamespace(end=1, ends=(1,), pad=0, stops=lambda strings: None, decode=str)  # type: ignore[assignment]
    return model


def decoding(sizes: dict[str, Any], device: str, args: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of each side, by name."""
    from transformers import GenerationConfig

    from shuhari.data import Sampling
    from shuhari.models.text.rows import Row

    lm = network(sizes, device, torch.bfloat16).eval()
    decoder = causal(network(sizes, device, torch.float32)).decoder(slots=args.rows, dtype="bfloat16")
    assert decoder is not None
    rng = np.random.default_rng(0)
    prompts = rng.integers(2, sizes["vocab_size"], (args.rows // 8, args.prompt)).astype(np.int32)
    ids = torch.from_numpy(prompts.repeat(8, 0)).long().to(device)
    key = 0

    def ours() -> None:
        nonlocal key
        for i in range(args.rows):
            key += 1
            decoder.add([Row(prompts[i // 8], Sampling(max_new=args.new), key, (key,), least=args.new)])
        while len(decoder):
            decoder.step()

    def theirs(cache: str | None) -> Callable[[], Any]:
        config = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=args.new, min_new_tokens=args.new,
                                  pad_token_id=0, eos_token_id=1, cache_implementation=cache)  # fmt: skip
        return lambda: lm.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)

    return rates({"ours": ours, "generate": theirs(None), "generate, static cache": theirs("static")},
                 args.rows * args.new, args.rounds)  # fmt: skip


def training(sizes: dict[str, Any], device: str, args: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of each side, by name: one optimiser step of the mean negative log-likelihood."""
    from shuhari.data import Problem, Request, Step, Trajectory
    from shuhari.kernel.pack import pack

    rng = np.random.default_rng(1)
    ids = rng.integers(2, sizes["vocab_size"], (args.batch, args.length)).astype(np.int32)
    request = Request(Problem("rows", "", None))
    batch = pack([Trajectory(request, (Step.of(row[:1], row[1:]),)) for row in ids])
    model = causal(network(sizes, device, torch.float32), "bfloat16")
    plain, tokens = network(sizes, device, torch.float32), torch.from_numpy(ids).long().to(device)

    def step(parameters: Any, loss: Callable[[], Tensor]) -> Callable[[], None]:
        optimiser = torch.optim.AdamW(list(parameters), lr=1e-6, fused=True)

        def go() -> None:
            loss().backward()
            optimiser.step()
            optimiser.zero_grad()

        return go

    def theirs() -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            found: Tensor = plain(input_ids=tokens, labels=tokens).loss
            return found

    sides = {
        "ours": step(model.module.parameters(), lambda: -model(batch).log_prob().mean()),
        "transformers": step(plain.parameters(), theirs),
    }
    return rates(sides, ids.size, args.rounds)


def grpo(sizes: dict[str, Any], device: str, tiny: bool) -> dict[str, Any]:
    """What `gpu_grpo.py` reports of each side, by name; in words, where one has failed."""
    from gpu_grpo import prepare

    found: dict[str, Any] = {}
    sides = ["ours", *(["trl"] if importlib.util.find_spec("trl") else [])]
    small = "--prompts 4 --n 4 --new 8 --steps 2 --micro 256".split() if tiny else []
    here = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), sizes)
        for side in sides:
            command = [sys.executable, str(here / "gpu_grpo.py"), side, folder, "--device", device, *small]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
            told = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            found[side] = json.loads(told[0].removeprefix("RESULT ")) if told else {"failed": last[0]}
            print(f"grpo, {side}: {found[side]}", flush=True)
    return found


def rates(sides: dict[str, Callable[[], Any]], tokens: int, rounds: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {name: [] for name in sides}
    for name, work in sides.items():
        print(f"{name}: first {seconds(work):.1f} s", flush=True)
    for _ in range(rounds):
        for name, work in sides.items():
            found[name].append(tokens / seconds(work))
    ratios = {
        n: spread([a / b for a, b in zip(found["ours"], x, strict=True)]) for n, x in found.items() if n != "ours"
    }
    return {"tokens_per_s": {name: spread(x) for name, x in found.items()}, "ratio": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    for name, usual in (("rows", 256), ("prompt", 128), ("new", 256), ("batch", 16), ("length", 1024), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--out", type=Path, default=None, help="default: results/gpu.json, with --tiny nowhere")
    args = parser.parse_args()
    if args.tiny:
        args.rows, args.prompt, args.new, args.batch, args.length, args.rounds = 16, 8, 8, 4, 32, 2
    device, sizes = "cuda" if torch.cuda.is_available() else "cpu", TINY if args.tiny else QWEN
    found: dict[str, Any] = {"machine": machine(torch.get_num_threads()), "limits": limits(device, args.tiny)}
    found["machine"]["gpu"] = torch.cuda.get_device_name() if device == "cuda" else "none"
    found["settings"] = {k: v for k, v in vars(args).items() if k != "out"}
    found["decode"], found["train"] = decoding(sizes, device, args), training(sizes, device, args)
    found["grpo"] = grpo(sizes, device, args.tiny)

    h, layers, m, v = (sizes[k] for k in ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size"))
    kv = 2 * sizes["num_key_value_heads"] * h // sizes["num_attention_heads"]  # numbers a layer keeps of a token
    weights = layers * (h * (2 * h + kv) + 3 * h * m) + v * h
    steps = args.rows / found["decode"]["tokens_per_s"]["ours"]["median"]  # seconds of one
    read = 2 * (weights + args.rows * (args.prompt + args.new / 2) * layers * kv)
    flops = 6 * weights + 6 * layers * h * args.length
    found["decode"]["of_bandwidth"] = read / steps / found["limits"]["bytes"]
    found["train"]["of_peak"] = found["train"]["tokens_per_s"]["ours"]["median"] * flops / found["limits"]["flops"]
    rows = [("what", "tokens a second", "ours over it: min / median / max")]
    for what in ("decode", "train"):
        for name, x in found[what]["tokens_per_s"].items():
            r = found[what]["ratio"].get(name)
            told = "" if r is None else " / ".join(f"{r[k]:.2f}" for k in ("min", "median", "max"))
            rows.append((f"{what}, {name}", f"{x['median']:,.0f}", told))
    steps_of = [("GRPO", "seconds a step: min / median / max", "tokens a second", "peak memory, GiB")]
    for name, x in found["grpo"].items():
        if "failed" in x:
            steps_of.append((name, f"failed: {x['failed']}", "", ""))
        else:
            steps_of.append((name, shown(spread(x["seconds"])), f"{x['tokens_per_s']:,.0f}", f"{x['peak_gib']:.1f}"))
    limit = (f"Copy {found['limits']['bytes'] / 1e9:,.0f} GB/s; "
             f"product {found['limits']['flops'] / 1e12:,.1f} TFLOP/s; "
             f"decoding reads at {100 * found['decode']['of_bandwidth']:.0f} % of the one, "
             f"training computes at {100 * found['train']['of_peak']:.0f} % of the other.")  # fmt: skip
    lines = [*table(*rows), "", *table(*steps_of), "", limit]
    print(*lines, sep="\n")
    if not args.tiny:
        versions = ", ".join(f"{name} {known}" for name, known in found["machine"]["versions"].items() if known)
        about = f"{found['machine']['gpu']}; {versions}."
        head = ["# On one GPU", "", "Written by `python benchmarks/gpu.py`, which says what is measured.", about, ""]
        Path(__file__).with_name("gpu.md").write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    out = args.out or (None if args.tiny else Path(__file__).parent / "results" / "gpu.json")
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

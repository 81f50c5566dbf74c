"""Training tokens per second of a causal language model, and what share of the machine's matmul peak that is.

Ours is the whole of a learner's update: the model on packed rows, the clipped objective, the gradient, AdamW. Theirs is
transformers' own forward of the same weights on the same rows, which need no padding here, with a plain log-softmax,
backward and torch's fused AdamW. Both take turns, with the peak between them: the best of square products of 1,024 to
4,096 at the same threads and type. Flops are 6 x non-embedding parameters x tokens, and 6 x layers x width x tokens x
length for causal attention; head and embedding are not counted, though their time is. Seconds are those of the process
(all threads, over their number), so that other work on the machine counts little.

    python benchmarks/training.py --hidden 512 --layers 6
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

VOCABULARY, PROMPT = 512, 16


def seconds(f: Callable[[], Any], threads: int) -> float:
    start = time.process_time()
    f()
    return (time.process_time() - start) / threads


def peak(threads: int, dtype: torch.dtype) -> float:
    """Flops a second."""
    best = 0.0
    for n in (1024, 2048, 4096):
        a, b = (torch.randn(n, n, dtype=dtype) for _ in range(2))
        best = max(best, *(2 * n**3 / seconds(lambda a=a, b=b: a @ b, threads) for _ in range(3)))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hidden", 512), ("layers", 6), ("threads", 1), ("rows", 32), ("length", 256),
                          ("micro-batch", 4096), ("repeats", 5)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--architecture", default="llama")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    rng = np.random.default_rng(0)
    ids = rng.integers(2, VOCABULARY, (args.rows, args.length)).astype(np.int32)

    ours, net = learner(args, ids)
    theirs = plain(args, net, torch.from_numpy(ids).long())
    layers = sum(
        p.numel() for n, p in net.named_parameters() if not any(e in n for e in ("embed", "wte", "wpe", "head"))
    )
    tokens = args.rows * args.length
    flops = 6 * tokens * (layers + args.layers * args.hidden * args.length)
    found: dict[str, list[float]] = {"ours": [], "theirs": [], "peak": []}
    for f in (ours, theirs):
        f()
    for _ in range(args.repeats):
        found["peak"].append(peak(args.threads, dtype))
        found["ours"].append(seconds(ours, args.threads))
        found["theirs"].append(seconds(theirs, args.threads))
    print(json.dumps({**vars(args), "parameters": layers, "peak_gflops": round(max(found["peak"]) / 1e9, 1)}))
    for name in ("ours", "theirs"):
        rates = sorted(tokens / s for s in found[name])
        shares = sorted(flops / s / p for s, p in zip(found[name], found["peak"], strict=True))
        for what, x, digits in (("tokens/s", rates, 0), ("share of peak", shares, 3)):
            print(f"{name:7}{what:14}", *(f"{v:10,.{digits}f}" for v in (x[0], statistics.median(x), x[-1])))
    ratios = sorted(t / o for o, t in zip(found["ours"], found["theirs"], strict=True))
    print("ours / theirs        ", *(f"{v:10.2f}" for v in (ratios[0], statistics.median(ratios), ratios[-1])))


def learner(args: argparse.Namespace, ids: np.ndarray) -> tuple[Callable[[], Any], torch.nn.Module]:
    """One update of a learner with the clipped objective, and the model that it trains."""
    from shuhari.config import recipe
    from shuhari.data import Problem, Request, Step, Trajectory
    from shuhari.kernel.pack import pack
    from shuhari.loop.run import open_run

    model = {
        "architecture": args.architecture, "hidden": args.hidden, "layers": args.layers, "heads": args.hidden // 64,
        "intermediate": 8 * args.hidden // 3 // 32 * 32, "context": args.length, "dtype": args.dtype,
        "gradient_checkpointing": args.gradient_checkpointing, "config": {"vocab_size": VOCABULARY},
    }  # fmt: skip
    settings = {
        "threads": args.threads, "steps": 1, "remove": ["stage", "evaluate"], "part.policy.minibatches": 1,
        "micro_batch": args.micro_batch, "part.policy.optimiser.lr": 1e-7,
        **{f"models.policy.{k}": v for k, v in model.items()},
    }  # fmt: skip
    run = open_run(recipe.load("baselines/grpo", settings=settings))
    run.enter_stage()
    logp = np.full(args.length - PROMPT, -np.log(VOCABULARY), np.float32)
    steps = [Step.of(row[:PROMPT], row[PROMPT:], logp) for row in ids]
    batch = pack([Trajectory(Request(Problem("t", str(i), "")), (s,)) for i, s in enumerate(steps)])
    batch.stream = "rl"
    advantage = torch.randn(len(batch), 1, generator=torch.Generator().manual_seed(0)).expand(batch["mask"].shape)
    batch = batch.put({"advantage": advantage})
    return lambda: run.stage.learners["main"].update(batch, run.ctx), run.ctx.models["policy"].module.lm


def plain(args: argparse.Namespace, net: torch.nn.Module, ids: torch.Tensor) -> Callable[[], Any]:
    """One update by transformers' own forward."""
    import copy

    lm: Any = copy.deepcopy(net)
    optimiser = torch.optim.AdamW(lm.parameters(), lr=1e-7, fused=True)
    rows = max(1, args.micro_batch // args.length)

    def update() -> None:
        optimiser.zero_grad()
        for piece in ids.split(rows):
            with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bfloat16"):
                logits = lm(input_ids=piece, use_cache=False).logits[:, PROMPT - 1 : -1]
            logp = logits.float().log_softmax(-1).gather(-1, piece[:, PROMPT:, None])
            F.mse_loss(logp, torch.zeros_like(logp)).backward()
        torch.nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
        optimiser.step()

    return update


if __name__ == "__main__":
    main()

"""Steps of GRPO on one GPU, ours beside TRL's `GRPOTrainer`: seconds a step and peak memory. `rates.py` calls it.

    python benchmarks/gpu/steps.py ours FOLDER [--steps 6 --device cuda ...]    one side, as a line of JSON

Both sides have the same model (the sizes of `made.py`, random weights that `prepare` writes into FOLDER), prompts,
numbers of samples and optimiser steps, training in bfloat16 over float32 weights, and a reward that reads token ids. No
answer ends before its last token, and the learning rate is so small that all goes on as it is. Each samples as it does
best in its own process: ours from a copy of the weights in bfloat16, TRL by transformers' `generate` under autocast.
vLLM, which both have, is not used. The first two steps are not counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WARM = 2  # steps that are not counted
LR = 1e-7
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))


def prepare(folder: Path, sizes: dict[str, Any]) -> None:
    """Write a model with random weights, a tokenizer of characters, and 512 problems."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from shuhari.models.text.made_tokenizers import PRINTABLE, character_tokenizer

    text = character_tokenizer(PRINTABLE)
    ends = {"pad_token_id": text.pad, "eos_token_id": text.end, "bos_token_id": None}
    torch.manual_seed(0)
    kind, rest = sizes["kind"], {k: v for k, v in sizes.items() if k != "kind"}
    config = AutoConfig.for_model(kind, **rest, **ends)
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    made.generation_config.suppress_tokens = [text.pad, text.end]  # both sides read it
    made.save_pretrained(folder)
    text.save(str(folder))
    rows = [{"prompt": f"{i:03d} " * 16, "answer": "", "split": "train"} for i in range(512)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


def share_even(ids: Sequence[int]) -> float:
    """The share of even token ids: a reward that differs from answer to answer and costs nothing."""
    return sum(int(i) % 2 == 0 for i in ids) / max(1, len(ids))


@dataclass
class Even:
    """`share_even` as a reward of ours, named in the recipe as `steps.Even`."""

    async def grade(self, group: Sequence[Any], ctx: Any) -> list[dict[str, float]]:
        return [{"even": share_even(t.steps[-1].action)} for t in group]


class Clock:
    """Seconds and tokens of each step, and the memory of those that count."""

    def __init__(self, steps: int) -> None:
        self.steps, self.marks, self.tokens = steps + WARM, list[float](), list[float]()

    def tick(self, tokens: float) -> bool:
        """A step that sampled so many tokens is done; whether another one is wanted."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
            if len(self.marks) + 1 == WARM:
                torch.cuda.reset_peak_memory_stats()
        self.marks.append(time.perf_counter())
        self.tokens.append(tokens)
        return len(self.marks) < self.steps

    def report(self) -> dict[str, Any]:
        import torch

        took = [b - a for a, b in zip(self.marks[WARM - 1 : -1], self.marks[WARM:], strict=True)]
        cuda = torch.cuda.is_available()
        peak = torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        rate = statistics.median(n / s for n, s in zip(self.tokens[WARM:], took, strict=True))
        return {"seconds": took, "tokens_per_s": rate, "peak_gib": peak / 2**30}


def ours(args: argparse.Namespace) -> dict[str, Any]:
    from shuhari.config import recipe
    from shuhari.loop.run import loop, open_run

    policy = {"use": "causal", "path": str(args.folder), "device": args.device, "dtype": "bfloat16"}
    settings = {
        "steps": args.steps + WARM, "remove": ["stage", "evaluate", "task", "models.policy"],
        "task": {"name": f"file/{args.folder}/problems.jsonl"}, "models.policy": policy,
        "engine.dtype": "bfloat16", "rollout.n": args.n, "rollout.sampling.max_new": args.new,
        "buffer.size": args.prompts, "reward.even.use": "steps.Even", "reward.weights": {"even": 1.0},
        "part.policy.minibatches": args.updates, "part.policy.optimiser.lr": LR, "micro_batch": args.micro,
    }  # fmt: skip
    clock, before = Clock(args.steps), 0.0
    for report in loop(open_run(recipe.load("baselines/grpo", settings=settings))):
        if not clock.tick(report["spent/tokens"] - before):
            break
        before = report["spent/tokens"]
    return clock.report()


def theirs(args: argparse.Namespace) -> dict[str, Any]:
    import text
    from transformers import TrainerCallback

    clock, sampled = Clock(args.steps), [0.0]

    def reward(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        sampled[0] += sum(map(len, completion_ids))
        return [share_even(ids) for ids in completion_ids]

    class Timed(TrainerCallback):
        def on_step_end(self, args_: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % args.updates == 0:
                control.should_training_stop = not clock.tick(sampled[0])
                sampled[0] = 0.0

    rows = args.prompts * args.n // args.updates  # of an optimiser step, read in pieces of about `micro` tokens
    pieces = max(1, min(rows, -(-rows * (args.new + 64) // args.micro)))
    while rows % pieces:
        pieces += 1
    case = {"folder": str(args.folder), "n": args.n, "new": args.new, "prompts": args.prompts,
            "updates": args.updates, "pieces": pieces}  # fmt: skip
    more = {} if args.device == "cpu" else {"use_cpu": False}
    text.trainer(case, reward, Timed(), learning_rate=LR, lr_scheduler_type="constant", bf16=True, **more).train()
    return clock.report()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=("ours", "trl"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    for name, usual in (("prompts", 16), ("n", 8), ("new", 512), ("updates", 2), ("steps", 6), ("micro", 16384)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    return parser.parse_args()


if __name__ == "__main__":
    given = parse()
    print("RESULT " + json.dumps((ours if given.side == "ours" else theirs)(given)))

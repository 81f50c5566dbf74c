"""One step of online DPO, ours beside TRL's: the same weights, prompts, reward, sample counts and optimiser steps.

A step samples two answers of at most `new` tokens to each of `prompts` prompts, and takes one optimiser step on the
pairs. Models, problems and the learning rate are those of `text`; so is what is left out. Two different answers never
tie: TRL would train on ties, and ours not.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import text
from gate import Gate

BETA = 0.1
prepare = text.prepare


def rate(said: str, answer: str) -> float:
    """The reward of both sides: `overlap`, and a digest of the text that decides between equal ones."""
    return text.overlap(said, answer) + 1e-3 * zlib.crc32(said.encode()) / 2**32


@dataclass
class Rated:
    """`rate` as a reward of ours, named in the recipe as `online_dpo.Rated`."""

    async def grade(self, group: Sequence[Any], ctx: Any) -> list[dict[str, float]]:
        return [{"rated": rate(t.steps[-1].info["text"], str(t.request.problem.answer))} for t in group]


def ours(case: dict[str, Any], gate: Gate) -> None:
    from shuhari.config import recipe
    from shuhari.loop.run import loop, open_run

    settings = {
        "threads": case["threads"],
        "steps": 1_000_000,
        "remove": ["stage", "evaluate", "task", "models.policy"],
        "task": {"name": f"file/{case['folder']}/problems.jsonl"},
        "models.policy": {"use": "causal", "path": case["folder"]},
        "rollout.n": 2,
        "rollout.sampling.max_new": case["new"],
        "buffer.size": case["prompts"],
        "reward.rated.use": "online_dpo.Rated",
        "reward.weights": {"rated": 1.0},
        "transform.pairs.per_group": 1,
        "part.policy.minibatches": 1,
        "part.policy.terms.preference.beta": BETA,
        "part.policy.optimiser.lr": text.LR,
    }
    run = open_run(recipe.load("baselines/dpo", settings=settings))
    tokens = 0.0
    if not gate.wait():
        return
    for report in loop(run):
        gate.count(samples=2 * case["prompts"], tokens=report["spent/tokens"] - tokens)
        tokens = report["spent/tokens"]
        if not gate.tick():
            return


def theirs(case: dict[str, Any], gate: Gate) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    def reward(completions: list[str], answer: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        pad = tokenizer.pad_token_id  # random weights also sample it: such tokens are not counted here
        gate.count(samples=len(completions), tokens=sum(x != pad for ids in completion_ids for x in ids))
        return [rate(c, a) for c, a in zip(completions, answer, strict=True)]

    class Gated(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = not gate.wait()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = not gate.tick()

    tokenizer = AutoTokenizer.from_pretrained(case["folder"])
    rows = [json.loads(line) for line in Path(case["folder"], "problems.jsonl").read_text().splitlines()]
    args = OnlineDPOConfig(
        output_dir=f"{case['folder']}/out", beta=[BETA], learning_rate=text.LR, lr_scheduler_type="constant",
        per_device_train_batch_size=case["prompts"], max_new_tokens=case["new"], max_length=256, temperature=1.0,
        top_p=1.0, top_k=0, adam_beta2=0.95, max_grad_norm=1.0, max_steps=1_000_000, optim="adamw_torch_fused",
        bf16=False, use_cpu=True, gradient_checkpointing=False, disable_dropout=True, dataloader_pin_memory=False,
        logging_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True, seed=0,
    )  # fmt: skip
    OnlineDPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(case["folder"]),
        ref_model=AutoModelForCausalLM.from_pretrained(case["folder"]),
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": r["prompt"], "answer": r["answer"]} for r in rows]),
        processing_class=tokenizer,
        callbacks=[Gated()],
    ).train()

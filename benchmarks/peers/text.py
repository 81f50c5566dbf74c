"""One RL step on text, ours beside TRL's: the same weights, prompts, reward, sample counts and optimiser steps.

A step samples `prompts` x `n` answers of at most `new` tokens and takes `updates` optimiser steps on them. Nothing is
logged, evaluated or stored. The learning rate is so small that the policy, and with it the length of its answers, stays
as it is: both sides go on doing the same work. Weights are random, so the vocabulary decides how long an answer is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gate import Gate

LR = 1e-7
KINDS = {  # architecture -> (sizes as transformers names them, task): prompts of one length, and of many
    "gpt2": (
        {"n_embd": 96, "n_layer": 3, "n_head": 3, "n_positions": 256},
        {"kind": "carry", "digits": 2},
    ),
    "llama": (
        {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
         "intermediate_size": 344, "max_position_embeddings": 256, "tie_word_embeddings": True},
        {"kind": "add", "digits": 4},
    ),
}  # fmt: skip


def overlap(text: str, answer: str) -> float:
    """The share of the answer's characters that the text has in their places: the reward of both sides."""
    return sum(a == b for a, b in zip(text, answer, strict=False)) / len(answer)


def prepare(folder: Path, architecture: str) -> None:
    """Write a model with random weights and a character tokenizer, and 4,096 problems, where both sides read them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from shuhari.models.text.made_tokenizers import PRINTABLE, character_tokenizer
    from shuhari.tasks.arithmetic import Arithmetic

    sizes, problems = KINDS[architecture]
    task = Arithmetic(**problems)
    text = character_tokenizer(task.alphabet if architecture == "gpt2" else PRINTABLE)
    ends = {"pad_token_id": text.pad, "eos_token_id": text.end, "bos_token_id": None}
    config = AutoConfig.for_model(architecture, vocab_size=text.size, **sizes, **ends)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    text.save(str(folder))
    train = task.problems("train")
    rows = [{"prompt": p.prompt, "answer": p.answer, "split": "train"} for p in (train[i] for i in range(4096))]
    (folder / "problems.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


@dataclass
class Overlap:
    """`overlap` as a reward of ours, named in the recipe as `text.Overlap`."""

    async def grade(self, group: Sequence[Any], ctx: Any) -> list[dict[str, float]]:
        return [{"overlap": overlap(t.steps[-1].info["text"], str(t.request.problem.answer))} for t in group]


def ours(case: dict[str, Any], gate: Gate) -> None:
    from shuhari.config import recipe
    from shuhari.loop.run import loop, open_run

    settings = {
        "threads": case["threads"],
        "steps": 1_000_000,
        "remove": ["stage", "evaluate", "task", "models.policy"],
        "task": {"name": f"file/{case['folder']}/problems.jsonl"},
        "models.policy": {"use": "causal", "path": case["folder"]},
        "rollout.n": case["n"],
        "rollout.sampling.max_new": case["new"],
        "buffer.size": case["prompts"],
        "reward.overlap.use": "text.Overlap",
        "reward.weights": {"overlap": 1.0},
        "part.policy.minibatches": case["updates"],
        "part.policy.optimiser.lr": LR,
        **case.get("settings", {}),
    }
    run = open_run(recipe.load("baselines/grpo", settings=settings))
    tokens = 0.0
    if not gate.wait():
        return
    for report in loop(run):
        gate.count(samples=case["prompts"] * case["n"], tokens=report["spent/tokens"] - tokens)
        tokens = report["spent/tokens"]
        if not gate.tick():
            return


def theirs(case: dict[str, Any], gate: Gate) -> None:
    from transformers import TrainerCallback

    def reward(completions: list[Any], answer: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        gate.count(samples=len(completions), tokens=sum(map(len, completion_ids)))
        texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
        return [overlap(c, a) for c, a in zip(texts, answer, strict=True)]

    class Gated(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = not gate.wait()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % case["updates"] == 0 and not gate.tick():
                control.should_training_stop = True

    trainer(case, reward, Gated(), learning_rate=LR, lr_scheduler_type="constant").train()


def trainer(case: dict[str, Any], reward: Any, callback: Any, schedule: Any = None, **settings: Any) -> Any:
    """TRL's trainer at its best settings here: one call of `generate` a step, no accumulation, nothing but the work.
    `schedule`: optimiser -> its scheduler, for the fused AdamW of the settings given."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    pieces = case.get("pieces", 1)  # of one optimiser step, as accumulated gradients
    args = GRPOConfig(**{
        "output_dir": f"{case['folder']}/out",
        "per_device_train_batch_size": case["prompts"] * case["n"] // case["updates"] // pieces,
        "gradient_accumulation_steps": pieces,
        "steps_per_generation": case["updates"] * pieces,  # all samples of a step from one call of generate
        "num_generations": case["n"],
        "max_completion_length": case["new"],
        "loss_type": "grpo",
        "scale_rewards": "group",
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "max_steps": 1_000_000,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "disable_dropout": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 0,
        **settings,
        **case.get("trl", {}),
    })  # fmt: skip
    rows = [json.loads(line) for line in Path(case["folder"], "problems.jsonl").read_text().splitlines()]
    rows = [r for r in rows if r["split"] == "train"]
    tokenizer = AutoTokenizer.from_pretrained(case["folder"])
    if tokenizer.chat_template:  # a user's turn, as ours reads it
        rows = [{**r, "prompt": [{"role": "user", "content": r["prompt"]}]} for r in rows]
    rows = [{"prompt": r["prompt"], "answer": r["answer"]} for r in rows]
    made = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(case["folder"]),
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[callback],
        peft_config=case.get("peft"),
    )
    if schedule is not None:
        made.lr_scheduler = schedule(made.create_optimizer())
    return made

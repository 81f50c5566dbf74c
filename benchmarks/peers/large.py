"""Work on a model of a directory, ours beside transformers' and TRL's: what `benchmarks/pretrained.py` measures.

Rows are made up, as long as those of GSM8K: a question of some fifty words, an answer of some sixty. A training step is
one on the same `rows` of them each time, `pieces` of it one after the other on their side; learning rates are so small
that the work stays the same. Left out: what a text says.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import rollout
import text
from gate import Gate

WORDS = ("apples baskets shop market sells friends each morning price dollars half twice more less number total weeks "
         "days hours then gives away keeps buys how many of the and for her in every costs box").split()  # fmt: skip
LR = 1e-7
LORA = {"rank": 16, "alpha": 32}
SIZES: dict[str, dict[str, Any]] = {  # of a Llama layout, as transformers names them
    "0.4M": {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 3,
             "intermediate_size": 256, "max_position_embeddings": 2048, "tie_word_embeddings": True},
    "15M": {**rollout.SIZES["15M"], "vocab_size": 2048},
    "135M": {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
             "intermediate_size": 1536, "max_position_embeddings": 2048, "tie_word_embeddings": True,
             "vocab_size": 49152},
}  # fmt: skip


def prepare(folder: Path, source: str, rows: int) -> None:
    """A directory with the model `source` (a directory of it, or one of SIZES at random), problems, rows and pairs."""
    if source in SIZES:
        rollout.SIZES[source] = SIZES[source]
        rollout.prepare(folder, source)
    else:
        folder.mkdir()
        for file in Path(source).resolve().iterdir():
            (folder / file.name).symlink_to(file)
    rng = random.Random(0)

    def say(least: int, most: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))

    few = 4 if source in SIZES else 1  # a token is a character there
    told = [(say(30 // few, 70 // few) + "?", say(35 // few, 85 // few) + ".", say(35 // few, 85 // few) + ".")
            for _ in range(rows)]  # fmt: skip
    _write(folder / "rows.jsonl", [{"prompt": p, "completion": a} for p, a, _ in told])
    _write(folder / "pairs.jsonl", [{"prompt": p, "chosen": a, "rejected": b} for p, a, b in told])
    numbers = ((rng.randrange(90), rng.randrange(90)) for _ in range(512))
    sums = [{"prompt": f"What is {a} + {b}?", "answer": str(a + b), "split": "train"} for a, b in numbers]
    _write(folder / "problems.jsonl", sums)


def _write(file: Path, rows: list[dict[str, str]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def ours(case: dict[str, Any], gate: Gate) -> None:
    if case["what"] == "sample":
        return rollout.ours(case, gate)
    if case["what"] == "grpo":
        lora = {"models.policy.lora": LORA} if case.get("lora") else {}
        return text.ours({**case, "settings": {**lora, **_types(case)}}, gate)
    return _train(case, gate)


def _types(case: dict[str, Any]) -> dict[str, Any]:
    dtype = case.get("dtype", "float32")
    return {"models.policy.dtype": dtype, "engine.dtype": dtype}


def _train(case: dict[str, Any], gate: Gate) -> None:
    """Steps of `pretrained/sft` or `pretrained/dpo`."""
    from shuhari.config import recipe
    from shuhari.loop.run import loop, open_run

    file, lora = {"sft": "rows", "dpo": "pairs"}[case["what"]], {"lora": LORA} if case.get("lora") else {}
    settings = {
        "threads": case["threads"], "steps": 1_000_000, "remove": ["evaluate", "models.policy"],
        "buffer.size": case["rows"],
        "task": {"name": f"file/{case['folder']}/{file}.jsonl"}, "part.policy.optimiser.lr": LR,
        "models.policy": {"use": "causal", "path": case["folder"], "context": 1024, **lora,
                          "dtype": case.get("dtype", "float32")},
    }  # fmt: skip
    run = open_run(recipe.load(f"pretrained/{case['what']}", settings=settings))
    if not gate.wait():
        return
    for _ in loop(run):
        gate.count(samples=case["rows"])
        if not gate.tick():
            return


def theirs(case: dict[str, Any], gate: Gate) -> None:
    {"sample": rollout.theirs, "grpo": _grpo, "sft": _plain, "dpo": _dpo}[case["what"]](case, gate)


def _adapters() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=LORA["rank"], lora_alpha=LORA["alpha"], target_modules="all-linear", task_type="CAUSAL_LM")


def _grpo(case: dict[str, Any], gate: Gate) -> None:
    more = {"bf16": True} if case.get("dtype") == "bfloat16" else {}
    text.theirs({**case, "trl": more, **({"peft": _adapters()} if case.get("lora") else {})}, gate)


def _plain(case: dict[str, Any], gate: Gate) -> None:
    """Padded rows through transformers' own forward and loss, torch's fused AdamW."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_pretrained(case["folder"], dtype=torch.float32)
    if case.get("lora"):
        from peft import get_peft_model

        lm = get_peft_model(lm, _adapters())
    tokenizer = AutoTokenizer.from_pretrained(case["folder"])
    rows = [_encode(tokenizer, json.loads(x)) for x in Path(case["folder"], "rows.jsonl").read_text().splitlines()]
    pieces = []
    for first in range(0, len(rows), size := len(rows) // case["pieces"]):
        part = rows[first : first + size]
        longest = max(len(p) + len(a) for p, a in part)
        ids = torch.tensor([[*p, *a, *[tokenizer.pad_token_id] * (longest - len(p) - len(a))] for p, a in part])
        at = torch.arange(longest)
        begins = torch.tensor([[len(p)] for p, _ in part])
        ends = torch.tensor([[len(p) + len(a)] for p, a in part])
        labels = ids.masked_fill((at < begins) | (at >= ends), -100)
        pieces.append({"input_ids": ids, "attention_mask": (at < ends).long(), "labels": labels})
    told = sum(len(a) for _, a in rows)
    trained = [p for p in lm.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=LR, fused=True)
    lm.train()
    wanted = gate.wait()
    while wanted:
        for piece in pieces:
            with torch.autocast("cpu", torch.bfloat16, enabled=case.get("dtype") == "bfloat16"):
                loss = lm(**piece, num_items_in_batch=told).loss
            loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        gate.count(samples=len(rows))
        wanted = gate.tick()


def _encode(tokenizer: Any, row: dict[str, str]) -> tuple[list[int], list[int]]:
    """Ids of the prompt and of the answer, by the chat template where there is one."""
    prompt, answer = row["prompt"], row["completion"]
    if not tokenizer.chat_template:
        return tokenizer(prompt)["input_ids"], [*tokenizer(answer)["input_ids"], tokenizer.eos_token_id]
    turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    begin = tokenizer.apply_chat_template(turns[:1], add_generation_prompt=True, return_dict=False)
    return begin, tokenizer.apply_chat_template(turns, return_dict=False)[len(begin) :]


def _dpo(case: dict[str, Any], gate: Gate) -> None:
    """TRL's trainer, on the same pairs."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import DPOConfig, DPOTrainer

    class Gated(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = not gate.wait()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            gate.count(samples=case["rows"])
            control.should_training_stop = not gate.tick()

    tokenizer = AutoTokenizer.from_pretrained(case["folder"])
    pairs = [json.loads(x) for x in Path(case["folder"], "pairs.jsonl").read_text().splitlines()]
    if tokenizer.chat_template:
        roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
        pairs = [{k: [{"role": roles[k], "content": v}] for k, v in pair.items()} for pair in pairs]
    args = DPOConfig(
        f"{case['folder']}/out", beta=0.1, bf16=case.get("dtype") == "bfloat16", use_cpu=True, learning_rate=LR,
        per_device_train_batch_size=case["rows"] // case["pieces"], gradient_accumulation_steps=case["pieces"],
        gradient_checkpointing=False, disable_dropout=True, max_steps=1_000_000, lr_scheduler_type="constant",
        report_to="none", disable_tqdm=True, logging_strategy="no", save_strategy="no", dataloader_pin_memory=False,
        optim="adamw_torch_fused",
    )  # fmt: skip
    DPOTrainer(
        AutoModelForCausalLM.from_pretrained(case["folder"]), None, args, train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer, peft_config=_adapters() if case.get("lora") else None, callbacks=[Gated()],
    ).train()  # fmt: skip

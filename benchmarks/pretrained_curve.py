"""How far GRPO takes a pretrained chat model on sums, by the settings of `pretrained/grpo`, and TRL's at equal tokens.

    python benchmarks/pretrained_curve.py MODEL --seed 0          ours; the same command goes on where it was stopped
    python benchmarks/pretrained_curve.py MODEL --seed 0 --trl    TRL's trainer, in benchmarks/.peers (make peers); too
    python benchmarks/pretrained_curve.py --draw                  the picture of all that is there

MODEL is a directory as transformers saves it, or for ours also a .gguf. The rows are those of docs/pretrained.md. Both
sides train adapters of rank 16 at a rate of 1e-4, on 8 questions with 8 answers of at most 16 tokens a step, by the
clipped surrogate over tokens (0.2 below, 0.28 above), advantages over the deviation of their group, no KL. Both grade
by `maths` and are evaluated greedily on the same 100 held-out questions. Each writes its steps, and eight questions
with the answers before and after, to benchmarks/results/pretrained/curve-SIDE-SEED.json.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from common import RESULTS, machine  # noqa: E402

PEERS = HERE / ".peers" / "bin" / "python"
OUT = RESULTS / "pretrained"
NEW, STEPS, EVERY, HELD_OUT, SHOWN, SAVED = 16, 100, 20, 100, 8, 2
KEPT = ("step", "spent/tokens", "reward/mean", "rollout/length", "rollout/entropy", "rollout/truncated",
        "policy/grad_norm", "policy/approx_kl", "engine/gap", "evaluate/greedy.maths")  # fmt: skip


def write_rows(file: Path) -> list[dict[str, str]]:
    """The sums of docs/pretrained.md: 1,000 to train on, 100 held out."""
    pairs = [(a, b) for a in range(11, 100) for b in range(11, 100)]
    random.Random(0).shuffle(pairs)
    rows = [{"prompt": f"What is {a} + {b}? Reply with the number only.", "answer": str(a + b),
             "split": "train" if i < 1000 else "test"} for i, (a, b) in enumerate(pairs[:1100])]  # fmt: skip
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def train_ours(model: str, seed: int, steps: int, work: Path, threads: int) -> dict[str, Any]:
    import shuhari

    rows = write_rows(work / "problems.jsonl")
    held = [r for r in rows if r["split"] == "test"]
    settings = {"models.policy.path": model, "task.name": f"file/{work / 'problems.jsonl'}", "steps": steps,
                "seed": seed, "rollout.sampling.max_new": NEW, "evaluate.every": EVERY, "evaluate.n": HELD_OUT,
                "threads": threads}  # fmt: skip
    run = work / f"run-{seed}"
    before = answer_ours(model, held[:SHOWN])
    trained = shuhari.train("pretrained/grpo", run, progress=lambda r: note(r, "evaluate/greedy.maths"), **settings)
    after = answer_ours(run, held[:SHOWN])
    columns = trained.metrics
    curve = [{k: columns[k][i] for k in KEPT if k in columns and columns[k][i] is not None}
             for i in range(len(columns["step"]))]  # fmt: skip
    start = (trained.summary.get("before") or {}).get("greedy.maths")
    return {"start": start, "curve": curve, "samples": pair(held, before, after)}


def answer_ours(model: str | Path, rows: list[dict[str, str]]) -> list[str]:
    import shuhari

    return list(shuhari.load(model).generate([r["prompt"] for r in rows], max_new=NEW, greedy=True))


def pair(rows: list[dict[str, str]], before: list[str], after: list[str]) -> list[dict[str, str]]:
    return [{"prompt": r["prompt"], "answer": r["answer"], "before": b, "after": a}
            for r, b, a in zip(rows, before, after, strict=False)]  # fmt: skip


def note(report: dict[str, Any], held_out: str) -> None:
    told = f"  held-out {report[held_out]:.2f}" if held_out in report else ""
    print(f"step {report['step']}  reward {report.get('reward/mean', float('nan')):.3f}{told}", flush=True)


def train_theirs(model: str, seed: int, tokens: float, work: Path, threads: int) -> dict[str, Any]:
    """Steps until `tokens` were sampled."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from shuhari.rewards.maths import JudgeError, Maths

    torch.set_num_threads(threads)
    rows = write_rows(work / "problems.jsonl")
    held = [r for r in rows if r["split"] == "test"]
    judge, curve = Maths(), list[dict[str, Any]]()
    spent = {"tokens": 0, "reward": 0.0}

    def grade(text: str, answer: str) -> float:
        try:
            return judge.judge(text, answer)
        except JudgeError:
            return 0.0  # none was seen: TRL has no word for an answer without a grade in this place

    def reward(completions: Any, answer: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        found = [grade(c[0]["content"], a) for c, a in zip(completions, answer, strict=True)]
        spent["tokens"] += sum(map(len, completion_ids))
        spent["reward"] = sum(found) / len(found)
        return found

    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    @torch.no_grad()
    def answer(net: Any, asked: list[dict[str, str]]) -> list[str]:
        turns = [[{"role": "user", "content": r["prompt"]}] for r in asked]
        given = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True)  # fmt: skip
        training, out = net.training, []
        net.eval()
        ids = net.generate(**given, max_new_tokens=NEW, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        out = tokenizer.batch_decode(ids[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
        net.train(training)
        return list(out)

    def measure(net: Any) -> float:
        return sum(grade(t, r["answer"]) for t, r in zip(answer(net, held), held, strict=True)) / len(held)

    class Watch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            row = {"step": state.global_step, "spent/tokens": spent["tokens"], "reward/mean": spent["reward"]}
            control.should_training_stop = spent["tokens"] >= tokens
            if state.global_step % EVERY == 0 or control.should_training_stop:
                row["evaluate/greedy.maths"] = measure(model)
            curve.append(row)
            (out / "curve.json").write_text(json.dumps(curve))
            note(row, "evaluate/greedy.maths")

    out = work / f"trl-{seed}"
    out.mkdir(parents=True, exist_ok=True)
    args = GRPOConfig(
        str(out), per_device_train_batch_size=64, num_generations=8, max_completion_length=NEW,
        loss_type="dapo", epsilon=0.2, epsilon_high=0.28, beta=0.0, scale_rewards="group", learning_rate=1e-4,
        lr_scheduler_type="constant_with_warmup", warmup_steps=STEPS // 20, adam_beta1=0.9, adam_beta2=0.99,
        weight_decay=0.0, max_grad_norm=1.0, temperature=1.0, max_steps=10 * STEPS, bf16=False, use_cpu=True,
        gradient_checkpointing=False, disable_dropout=True, dataloader_num_workers=0, dataloader_pin_memory=False,
        logging_strategy="no", save_strategy="steps", save_steps=SAVED,
        save_total_limit=1, report_to="none", disable_tqdm=True, seed=seed,
    )  # fmt: skip
    data = [{"prompt": [{"role": "user", "content": r["prompt"]}], "answer": r["answer"]} for r in rows
            if r["split"] == "train"]  # fmt: skip
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    start, before = measure(lm), answer(lm, held[:SHOWN])
    kept = sorted(out.glob("checkpoint-*"), key=lambda at: int(at.name.rpartition("-")[2]))
    if kept:  # it was stopped: the steps up to there, and what they had sampled
        done = int(kept[-1].name.rpartition("-")[2])
        curve += json.loads((out / "curve.json").read_text())[:done]
        spent["tokens"] = curve[-1]["spent/tokens"]
    trainer = GRPOTrainer(model=lm, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(data),
                          processing_class=tokenizer, callbacks=[Watch()], peft_config=lora)  # fmt: skip
    trainer.train(resume_from_checkpoint=str(kept[-1]) if kept else None)
    return {"start": start, "curve": curve, "samples": pair(held, before, answer(trainer.model, held[:SHOWN]))}


def draw(folder: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(6, 3.4), dpi=110, layout="constrained")
    for file in sorted(folder.glob("curve-*.json")):
        found = json.loads(file.read_text())
        side, seed = found["side"], found["seed"]
        told = [r for r in found["curve"] if "evaluate/greedy.maths" in r]
        points = [(0.0, found["start"]), *((r["spent/tokens"], r["evaluate/greedy.maths"]) for r in told)]
        style = {"color": "C0", "marker": "o"} if side == "ours" else {"color": "C1", "marker": "s", "linestyle": "--"}
        name = "shuhari" if side == "ours" else "TRL"
        ax.plot(*zip(*points, strict=True), label=f"{name}, seed {seed}", markersize=4, **style)
    ax.set(xlabel="tokens sampled", ylabel="held-out sums right", ylim=(0, 1))
    ax.grid(alpha=0.3)
    ax.legend(frameon=False)
    fig.savefig(folder / "curve.png")
    print(folder / "curve.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a directory as transformers saves it; for ours also a .gguf")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trl", action="store_true", help="TRL's trainer, until it has sampled as many tokens as ours")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of ours (default {STEPS})")
    parser.add_argument("--tokens", type=float, help="of TRL's (default: those that ours of this seed has sampled)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("runs/pretrained-curve"), help="where runs are kept")
    parser.add_argument("--draw", action="store_true", help="only draw what is there")
    given = parser.parse_args()
    if given.draw:
        return draw(OUT)
    if not given.model:
        parser.error("which model? expected its directory")
    if given.trl and Path(sys.executable) != PEERS and PEERS.exists():
        sys.exit(subprocess.run([str(PEERS), *sys.argv]).returncode)
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    OUT.mkdir(parents=True, exist_ok=True)
    side, began = "trl" if given.trl else "ours", time.monotonic()
    if given.trl:
        tokens = given.tokens
        if tokens is None:
            tokens = json.loads((OUT / f"curve-ours-{given.seed}.json").read_text())["curve"][-1]["spent/tokens"]
        found = train_theirs(given.model, given.seed, tokens, work, given.threads)
    else:
        found = train_ours(given.model, given.seed, given.steps, work, given.threads)
    about = {"side": side, "seed": given.seed, "model": Path(given.model).name, "machine": machine(given.threads),
             "seconds": round(time.monotonic() - began)}  # fmt: skip
    file = OUT / f"curve-{side}-{given.seed}.json"
    file.write_text(json.dumps(about | found, indent=1) + "\n")
    print(file)


if __name__ == "__main__":
    main()

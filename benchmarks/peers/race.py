"""From the same weights to a given held-out accuracy: GRPO on two-digit sums, ours beside TRL's.

Both start from one model, taught by our supervised stage to forget every carry, and take the settings of
`baselines/grpo`: prompts a step, samples a prompt, optimiser steps, learning rate at every step, loss. Training and
held-out problems are one file. The same function measures both after every block of steps, greedily, off the clock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import text
from gate import Gate

LR = {"start": 7e-4, "to": 7e-5, "over": 120.0, "warm": 6.0}  # by step, as in baselines/grpo


def prepare(folder: Path, architecture: str) -> None:
    """Write the taught model, and 4,096 training and 256 held-out problems."""
    from shuhari.config import recipe
    from shuhari.loop.run import loop, open_run

    settings = {"remove": ["evaluate"], "threads": 1, "models.policy.architecture": architecture}
    run = open_run(recipe.load("baselines/sft_arithmetic", settings=settings))
    for _ in loop(run):
        pass
    run.ctx.models["policy"].save(folder)
    rows = []
    for split, count in (("train", 4096), ("test", 256)):
        problems = run.ctx.task.problems(split)
        rows += [{"prompt": p.prompt, "answer": p.answer, "split": split} for p in (problems[i] for i in range(count))]
    (folder / "problems.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


class Exam:
    """The share of the held-out problems that a model answers rightly, greedily. All prompts have one length."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoTokenizer

        rows = [json.loads(line) for line in Path(folder, "problems.jsonl").read_text().splitlines()]
        self.rows = [r for r in rows if r["split"] == "test"]
        self.text = AutoTokenizer.from_pretrained(folder)

    def __call__(self, lm: Any) -> float:
        import torch

        ids = torch.tensor([self.text(r["prompt"], add_special_tokens=False)["input_ids"] for r in self.rows])
        training = lm.training
        with torch.no_grad():
            said = lm.eval().generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8)
        lm.train(training)
        answers = self.text.batch_decode(said[:, ids.shape[1] :], skip_special_tokens=True)
        return sum(a.strip() == r["answer"] for a, r in zip(answers, self.rows, strict=True)) / len(self.rows)


def step(gate: Gate, exam: Exam, lm: Any) -> bool:
    """One step of training is done; the last of a block is followed by the exam. Whether to go on."""
    gate.count(steps=1)
    if gate.last:
        with gate.outside():
            gate.count(accuracy=exam(lm))
    return gate.tick()


def ours(case: dict[str, Any], gate: Gate) -> None:
    from shuhari.config import recipe
    from shuhari.loop.run import loop, open_run

    settings = {
        "threads": case["threads"],
        "seed": case["seed"],
        "steps": 1_000_000,
        "remove": ["stage", "evaluate", "task", "models.policy"],
        "task": {"name": f"file/{case['folder']}/problems.jsonl"},
        "models.policy": {"use": "causal", "path": case["folder"]},
        "rollout.n": case["n"],
        "rollout.sampling.max_new": case["new"],
        "buffer.size": case["prompts"],
        "part.policy.minibatches": case["updates"],
        "part.policy.optimiser.lr": {**{k: v for k, v in LR.items() if k != "start"}, "from": LR["start"]},
        **case.get("settings", {}),
    }
    run = open_run(recipe.load("baselines/grpo", settings=settings))
    exam = Exam(case["folder"])
    run.enter_stage()  # the model is loaded before the clock starts, as theirs is
    if gate.wait():
        for _ in loop(run):
            if not step(gate, exam, run.ctx.models["policy"].module.lm):
                return


def theirs(case: dict[str, Any], gate: Gate) -> None:
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import TrainerCallback

    from shuhari.data import Ramp

    exam, ramp, updates = Exam(case["folder"]), Ramp(**LR), case["updates"]

    def reward(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
        return [float(c.strip() == a) for c, a in zip(completions, answer, strict=True)]

    class Gated(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = not gate.wait()

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if state.global_step % updates == 0 and not step(gate, exam, model):
                control.should_training_stop = True

    def schedule(optimiser: Any) -> Any:
        return LambdaLR(optimiser, lambda done: ramp(done // updates) / ramp.start)

    text.trainer(case, reward, Gated(), schedule, learning_rate=ramp.start, seed=case["seed"]).train()

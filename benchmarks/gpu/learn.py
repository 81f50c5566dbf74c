"""Part 4: GRPO with the settings of `pretrained/grpo` for a few minutes, on sums in words, and its curve.

With weights that are there, a question is a user's turn in the model's chat template and an answer is right where its
last number is the sum. Random weights learn to write digits instead: the same loop, and a reward that they can reach.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from made import SMOL, shrunk
from notes import Notes, forget_peak, peak_gib

from shuhari.tasks.source import answer_text

KEPT = re.compile(r"reward/|evaluate/greedy|rollout/(length|entropy|truncated)|engine/gap|"
                  r"policy/(grad_norm|ratio|approx_kl|lr)|spent/tokens")
NUMBER = re.compile(r"-?\d{1,20}", re.ASCII)


@dataclass
class Last:
    """1 where the last whole number of the answer is the right one."""

    async def grade(self, group: Sequence[Any], ctx: Any) -> list[dict[str, float]]:
        return [{"last": float(NUMBER.findall(answer_text(t.steps))[-1:] == [t.request.problem.answer])} for t in group]


@dataclass
class Digits:
    """The share of digits among the characters of the answer."""

    async def grade(self, group: Sequence[Any], ctx: Any) -> list[dict[str, float]]:
        texts = [answer_text(t.steps) for t in group]
        return [{"digits": sum(c.isdigit() for c in t) / max(1, len(t))} for t in texts]


def write_problems(file: Path, many: int = 4096) -> None:
    """Sums of two and three numbers, of which one in sixteen is for tests."""
    rng, rows = np.random.default_rng(0), []
    for i in range(many):
        x = rng.integers(10, 1000, int(rng.integers(2, 4))).tolist()
        prompt = f"What is {' + '.join(map(str, x))}? Answer with the number alone."
        rows.append({"prompt": prompt, "answer": str(sum(x)), "split": "test" if i % 16 == 0 else "train"})
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))


def settings_of(notes: Notes, folder: Path, model: Path, reward: str) -> dict[str, Any]:
    half = {"models.policy.dtype": "bfloat16", "engine.dtype": "bfloat16"} if notes.device == "cuda" else {}
    sizes = {"rollout.n": 8, "buffer.size": 32, "rollout.sampling.max_new": 48, "evaluate.n": 128, "evaluate.every": 20,
             "micro_batch": 32_768}  # fmt: skip
    if notes.tiny:
        sizes = {"rollout.n": 4, "buffer.size": 4, "rollout.sampling.max_new": 8, "evaluate.n": 4, "evaluate.every": 2,
                 "micro_batch": 1024}  # fmt: skip
    return {"steps": 4 if notes.tiny else 2000, "part.policy.optimiser.lr.warm": 5,
            "task.name": f"file/{folder}/sums.jsonl",
            "models.policy.path": str(model), "models.policy.device": notes.device, "remove": ["reward"],
            f"reward.{reward.lower()}.use": f"learn.{reward}", "reward.weights": {reward.lower(): 1.0},
            **half, **sizes}  # fmt: skip


def learn(notes: Notes, seconds: float, more: dict[str, Any]) -> dict[str, Any]:
    from shuhari.config import recipe
    from shuhari.loop.run import loop, open_run

    end = notes.left - seconds
    with tempfile.TemporaryDirectory() as made:
        folder, reward = Path(made), "Last"
        model = notes.weights
        write_problems(folder / "sums.jsonl")
        if model is None:
            from steps import prepare

            model, reward = folder / "random", "Digits"
            model.mkdir()
            prepare(model, shrunk(SMOL) if notes.tiny else SMOL)
        settings = settings_of(notes, folder, model, reward) | more
        found: dict[str, Any] = {"model": model.name, "settings": {k: str(v) for k, v in settings.items()}}
        steps = loop(open_run(recipe.load("pretrained/grpo", settings=settings)))
        forget_peak()
        found["keys"], found["curve"] = [], []
        began = notes.left
        for report in steps:
            found["keys"] = sorted({*found["keys"], *report})
            told = {k: v for k, v in report.items() if KEPT.search(k) and isinstance(v, int | float)}
            found["curve"].append({"step": len(found["curve"]) + 1, "at_s": round(began - notes.left, 2), **told})
            found["peak_gib"] = peak_gib()
            notes.put("learning", found)
            if notes.left < end:
                break
        steps.close()  # type: ignore[attr-defined]
    return summed(found)


def summed(found: dict[str, Any]) -> dict[str, Any]:
    """With seconds a step and tokens a second, of all steps but the first two."""
    curve = found["curve"]
    if len(curve) > 3:
        took = curve[-1]["at_s"] - curve[1]["at_s"]
        found["seconds_a_step"] = took / (len(curve) - 2)
        if "spent/tokens" in curve[-1]:
            found["tokens_per_s"] = (curve[-1]["spent/tokens"] - curve[1]["spent/tokens"]) / max(took, 1e-9)
    return found


def draw(found: dict[str, Any], file: Path) -> None:
    """The curve of rewards and of evaluations, where matplotlib is there."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(5, 3), dpi=90)
    for key in [f"{kind}{name}" for kind in ("reward/", "evaluate/greedy.") for name in ("last", "digits")]:
        points = [(x["at_s"], x[key]) for x in found["curve"] if key in x]
        if not points:
            continue
        ax.plot(*zip(*points, strict=True), label=key, marker="." if len(points) < 40 else "")
    ax.set_xlabel("seconds")
    ax.set_title(f"GRPO, {found['model']}", fontsize=9)
    ax.legend(fontsize=7)
    fig.tight_layout()
    fig.savefig(file)
    plt.close(fig)


def main(notes: Notes, most: float = 300.0) -> None:
    notes.attempt("grpo", 30, lambda: learn(notes, min(most, notes.left - 15), {}))
    found = notes.found["grpo"]
    if "curve" in found:
        notes.found.pop("learning", None)
        if notes.file is not None and notes.left > 3:
            file = notes.file.with_suffix(".png")
            notes.attempt("picture", 0, lambda: draw(found, file))

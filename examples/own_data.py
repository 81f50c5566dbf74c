"""Your own data and your own reward: a JSONL file, a plain function, and a recipe that trains on them.

Each prompt names a letter, and the reward is the share of the answer that is this letter.

    python examples/own_data.py
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import shuhari

LENGTH = 8


def share(completions: Sequence[str], letter: Sequence[str], **columns: Any) -> list[float | None]:
    """One number a completion. The arguments are lists over the samples: `letter` is a column of the file."""
    return [text.count(wanted) / LENGTH for text, wanted in zip(completions, letter, strict=True)]


def write(file: Path) -> Path:
    """200 prompts, of which the task holds a tenth out by a hash."""
    rows = [{"prompt": f"{i} {letter}: ", "letter": letter} for i in range(50) for letter in "abcd"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def main(steps: int = 60, folder: Path = Path("runs/own_data")) -> shuhari.Trained:
    """A small model from random weights, by GRPO without a warm-up."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "task": {"name": f"file/{write(folder / 'letters.jsonl')}"},
        "reward.share.use": f"{Path(__file__).resolve()}:share",
        "models.policy": {"use": "causal", "hidden": 32, "layers": 1, "heads": 2, "intermediate": 64},
        "rollout.sampling.max_new": LENGTH,
        "buffer.size": 16,
        "part.policy.optimiser.lr": 3e-3,
        "evaluate": {"every": 20, "samples": 1},
        "remove": ["stage.warm-up"],
        "stage.rl.steps": steps,
    }
    return shuhari.train("baselines/grpo", folder / "run", **settings)


if __name__ == "__main__":
    run = main()
    before, after = run.summary["before"]["greedy"], run.summary["after"]["greedy"]
    print(f"{run.path}: held-out reward {before:.2f} before, {after:.2f} after {run.summary['wall_s']:.0f} s")

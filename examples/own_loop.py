"""A training loop of your own on four calls: sample, forward_backward, optim_step, save_state. No recipe.

Imitation first (demonstrations, some of which forget the carry), then RL from right or wrong alone.

    python examples/own_loop.py          # about a minute; two numbers after it: steps of imitation and of RL
"""

from __future__ import annotations

import sys
from pathlib import Path

import shuhari
from shuhari import Sampling, Term
from shuhari.buffers.demos import Demos
from shuhari.objectives.clip import Clip
from shuhari.objectives.likelihood import Nll
from shuhari.transforms.advantage import Advantage

MODEL = {"use": "causal", "architecture": "gpt2", "hidden": 96, "layers": 3, "heads": 3, "context": 64}


def main(imitate: int = 300, rl: int = 60, folder: Path = Path("runs/own_loop")) -> dict[str, float]:
    """Held-out greedy accuracy before and after RL."""
    task = {"name": "arithmetic", "kind": "carry", "forget": 0.7}
    adamw = {"use": "adamw", "betas": [0.9, 0.95], "clip": 1.0}
    with shuhari.session(MODEL, task=task, optimiser=adamw, sampling=Sampling(max_new=8), seed=0, threads=1) as s:
        demos = Demos(size=256)
        for step in range(imitate):
            for batch in demos.draw(s.ctx):
                s.forward_backward(batch, [Term(Nll(), stream="ce")])
            s.optim_step(lr=2e-3 * min(1, step / 15, (imitate - step) / 60))
        before = s.evaluate(256)["greedy"]
        for step in range(rl):
            batch = s.transform(s.sample(32, n=16), Advantage(scale="batch"))  # 32 problems, 16 samples of each
            info = s.forward_backward(batch, [Term(Clip(high=0.28))])
            s.optim_step(lr=7e-4 * min(1, (step + 1) / 6))
            if step % 10 == 9:
                print(
                    f"step {step + 1}: reward {float(batch.outcome('reward').mean()):.2f}, loss {info['loss/clip']:.3f}"
                )
        s.save_state(folder)
        return {"before": before, "after": s.evaluate(256)["greedy"]}


if __name__ == "__main__":
    scores = main(*map(int, sys.argv[1:]))
    print(f"held-out accuracy {scores['before']:.3f} after imitation, {scores['after']:.3f} after RL")

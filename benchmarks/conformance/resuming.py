"""TRL: a run of four steps beside the same run stopped after two or three and resumed from its checkpoint.

Each generated batch serves two steps (`num_iterations = 2`), so the third step ends in the middle of one. Prints what
was asked in each step, and how far the final weights are apart. Everything is seeded; the model has no dropout.
"""

from __future__ import annotations

from typing import Any

import torch
from tiny import folder, make_trainer, versions

ASKED: list[str] = []


def reward(prompts, completions, **_):
    ASKED.append(prompts[0])
    return [float(len(c)) for c in completions]


def trainer(steps: int, path: str) -> Any:
    settings = {"max_steps": steps, "num_iterations": 2, "learning_rate": 1e-2, "lr_scheduler_type": "constant"}
    made = make_trainer("GRPO", reward, path, prompts=40, **settings)
    made.args.save_strategy, made.args.save_steps = "steps", 1
    return made


def weights(made: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in made.model.parameters()])


def main() -> None:
    print(versions())
    whole = trainer(4, str(folder()))
    whole.train()
    print(f"in one go: generated for {ASKED}")
    for stop in (2, 3):
        path = str(folder())
        ASKED.clear()
        trainer(stop, path).train()
        resumed = trainer(4, path)
        resumed.train(resume_from_checkpoint=f"{path}/checkpoint-{stop}")
        apart = float((weights(resumed) - weights(whole)).abs().max())
        print(f"stopped after {stop} steps: generated for {ASKED}; largest difference of a weight {apart:.2g}")


if __name__ == "__main__":
    main()

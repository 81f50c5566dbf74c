"""TRL: the advantages of a group where a reward function abstains, from one sample, and from all of them.

Two functions, `right` and `tidy`. Each of four samples is right; `tidy` gives 1 to three and does not judge the fourth.
"""

from __future__ import annotations

from typing import Any

import torch
from tiny import make_trainer, versions


def advantages(*functions: Any) -> list[float]:
    torch.manual_seed(0)
    trainer = make_trainer("GRPO", list(functions), per_device_train_batch_size=4, scale_rewards="none")
    trainer.model.train()
    found = trainer._generate_and_score_completions([{"prompt": "1+1="}] * 4)
    return [round(float(a), 3) for a in found["advantages"]]


def right(completions, **_):
    return [1.0] * len(completions)


def tidy(completions, **_):
    return [1.0, 1.0, 1.0, None]


def graded(completions, **_):
    return [1.0, 0.0, 1.0, None]


def main() -> None:
    print(versions())
    print(f"one of two functions does not judge the fourth sample: advantages {advantages(right, tidy)}")
    print(f"the only function does not judge it: advantages {advantages(graded)}")


if __name__ == "__main__":
    main()

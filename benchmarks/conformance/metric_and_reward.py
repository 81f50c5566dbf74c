"""TRL: whether GRPOTrainer takes a metric that is not a reward, and what its evaluation reports.

Two functions: `proxy`, which is trained on, and `truth`, which is only to be watched (weight 0).
"""

from __future__ import annotations

import inspect

import trl
from tiny import make_trainer, versions


def proxy(completions, **_):
    return [len(c) / 8 for c in completions]


def truth(completions, **_):
    return [float(c == "2") for c in completions]


def main() -> None:
    print(versions())
    taken = "compute_metrics" in inspect.signature(trl.GRPOTrainer.__init__).parameters
    print(f"GRPOTrainer takes compute_metrics: {taken}")
    settings = {"reward_weights": [1.0, 0.0], "per_device_eval_batch_size": 8, "eval_strategy": "no"}
    trainer = make_trainer("GRPO", [proxy, truth], **settings)
    report = trainer.evaluate(trainer.train_dataset)
    print({k: round(v, 3) for k, v in report.items() if "reward" in k})


if __name__ == "__main__":
    main()

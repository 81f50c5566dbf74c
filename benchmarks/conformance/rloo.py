"""TRL: RLOO's advantages and loss beside the paper's (arXiv 2402.14740, equation 10), of one group.

verl's and OpenRLHF's were read, not run (docs/conformance/rloo.md).
"""

from __future__ import annotations

import torch
from tiny import make_trainer, versions

REWARDS = [1.0, 0.0, 0.0, 0.5]


def main() -> None:
    print(versions())
    trainer = make_trainer("RLOO", lambda completions, **_: REWARDS, per_device_train_batch_size=4)
    trainer.model.train()
    found = trainer._generate_and_score_completions([{"prompt": "1+1="}] * 4)
    rewards = torch.tensor(REWARDS)
    paper = rewards - (rewards.sum() - rewards) / 3
    print(f"advantages {found['advantages'].tolist()}, the paper's {paper.tolist()}")
    for shift in (0.0, 1.0):  # a policy that has moved since: whole answers are `shift` nats likelier
        moved = {**found, "old_logps": found["old_logps"] - shift}
        trainer.model.zero_grad()
        trainer._compute_loss(trainer.model, moved).backward()
        size = torch.cat([p.grad.flatten() for p in trainer.model.parameters()]).norm()
        print(f"gradient where each answer is {shift} nats likelier than when it was sampled: norm {float(size):.3f}")


if __name__ == "__main__":
    main()

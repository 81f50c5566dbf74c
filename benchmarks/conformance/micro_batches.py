"""TRL: the gradient of the same samples, in one piece and in micro-batches, by loss.

What is called is the trainer's own `_compute_loss`, with what it would be given for one step of the optimiser: eight
samples of very different lengths at once, or two at a time with four steps of accumulation.
"""

from __future__ import annotations

from typing import Any

import torch
from tiny import make_trainer, versions

B, K = 8, 8
LENGTHS = torch.tensor([1, 1, 8, 8, 1, 2, 8, 7])


def batch() -> dict[str, Any]:
    torch.manual_seed(2)
    mask = (torch.arange(K) < LENGTHS[:, None]).long()
    ids = torch.randint(2, 14, (B, K))
    inputs = {"prompt_ids": torch.full((B, 3), 5), "prompt_mask": torch.ones(B, 3, dtype=torch.long)}
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, -1.0, -0.5, -0.5])
    return inputs | {"completion_ids": ids * mask, "completion_mask": mask, "advantages": advantages}


def gradient(loss: str, pieces: int) -> torch.Tensor:
    settings = {"per_device_train_batch_size": B // pieces, "gradient_accumulation_steps": pieces, "loss_type": loss}
    trainer = make_trainer("GRPO", lambda completions, **_: [0.0] * len(completions), num_generations=2, **settings)
    trainer.current_gradient_accumulation_steps = pieces
    trainer.model.train()
    whole = batch()
    for i in range(pieces):
        part = {k: v[i * B // pieces : (i + 1) * B // pieces] for k, v in whole.items()}
        part |= {"old_per_token_logps": None, "ref_per_token_logps": None}
        part["num_items_in_batch"] = whole["completion_mask"].sum()
        trainer._compute_loss(trainer.model, part).backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters()])


def main() -> None:
    print(versions())
    for loss in ("grpo", "dr_grpo", "dapo", "cispo", "bnpo"):
        one, many = gradient(loss, 1), gradient(loss, 4)
        apart = float((one - many).norm() / one.norm())
        print(f"loss_type {loss}: gradients of 1 and 4 micro-batches are {apart:.1%} apart")


if __name__ == "__main__":
    main()

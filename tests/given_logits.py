"""A model's answer whose logits are given."""

from __future__ import annotations

import torch


class Logits:
    """A distribution whose logits [B, K, V] are given, as a model's answer."""

    def __init__(self, logits: torch.Tensor, action: torch.Tensor) -> None:
        self.logits, self.action = logits, action

    def log_prob(self) -> torch.Tensor:
        return self.logits.log_softmax(-1).gather(-1, self.action[..., None]).squeeze(-1)

    def parameters(self) -> torch.Tensor:
        return self.logits

    def at(self, index: torch.Tensor) -> Logits:
        return Logits(self.logits.flatten(0, 1)[index], self.action.flatten()[index])
